-- timeline_of_server() → the timeline that this server writes: a promotion begins a new one. The control file names it
-- only after the next checkpoint, minutes later. On a standby: the one of its last restart point.
create function msgtx.timeline_of_server() returns int language plpgsql stable as $$
begin
    if pg_is_in_recovery() then
        return (select c.timeline_id from pg_control_checkpoint() c);
    end if;
    return ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int;
end $$;
