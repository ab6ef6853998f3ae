-- end_sessions() ends the sessions of other msgtx processes in this database, as far as the role may; → how many. They
-- connect again, and then learn of a changed incarnation. Reads pg_stat_activity; writes nothing.
-- right: owner
create function msgtx.end_sessions() returns int language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    one int;
    ended int := 0;
begin
    for one in
        select a.pid from pg_stat_activity a
        where a.datname = current_database() and a.application_name like 'msgtx %' and a.pid <> pg_backend_pid()
    loop
        begin
            ended := ended + pg_terminate_backend(one)::int;
        exception when insufficient_privilege then
            null;  -- of another role: it learns of it when it is fenced, or connects again by itself
        end;
    end loop;
    return ended;
end $$;
