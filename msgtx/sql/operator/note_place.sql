-- note_place() notes that this database is where it belongs: the server (its system identifier and timeline) and its own
-- number there. `doctor` compares: a copy has the incarnation of its original, and tokens of one are taken for the other's.
-- Noted with each new incarnation; by hand, as owner, when the whole database was moved and the original is gone
-- (pg_upgrade, dump and restore, a logical replica). Sequences skip ahead if it has moved, or one is behind the tables. If
-- the server does not say where it is, nothing is recorded. Locks through skip_ahead. Writes installation. Not flushed by
-- itself.
-- right: owner
create function msgtx.note_place() returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if msgtx.has_moved() or exists (select from msgtx.sequences() s where s.is_behind) then
        perform msgtx.skip_ahead();
    end if;
    update msgtx.installation i
    set system_identifier = s.system_identifier, timeline = msgtx.timeline_of_server(), database_oid = d.oid,
        sequences_system = s.system_identifier, sequences_database = d.oid
    from pg_control_system() s cross join pg_database d where d.datname = current_database();
    return true;
exception when insufficient_privilege or feature_not_supported then
    return false;
end $$;
