-- identify_server() → the server's system identifier and the timeline that it writes; nulls on a standby, which writes none,
-- and where the server does not say it, as some managed services. A client asks on each new connection.
-- right: any
-- null: system_identifier, timeline
create function msgtx.identify_server(out system_identifier bigint, out timeline int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if not pg_is_in_recovery() then
        select s.system_identifier, msgtx.timeline_of_server() into system_identifier, timeline from pg_control_system() s;
    end if;
exception when others then
    null;
end $$;
