-- identify_server() → the server's system identifier and the timeline that it writes; nulls on a standby, which writes none,
-- and where the server does not say it, as some managed services. is_synchronous: whether a COMMIT that msgtx acknowledges
-- waits for a synchronous standby. A client asks on each new connection.
-- right: any
-- null: system_identifier, timeline, is_synchronous
create function msgtx.identify_server(out system_identifier bigint, out timeline int, out is_synchronous boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if not pg_is_in_recovery() then
        select s.system_identifier, msgtx.timeline_of_server(),
               current_setting('synchronous_standby_names') <> ''
               and current_setting('synchronous_commit') not in ('local', 'remote_write')
        into system_identifier, timeline, is_synchronous from pg_control_system() s;
    end if;
exception when others then
    null;
end $$;
