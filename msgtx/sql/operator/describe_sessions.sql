-- describe_sessions(pids) → these sessions as pg_stat_activity shows them to the caller: PostgreSQL hides the state of other
-- roles' sessions from roles that are not in pg_read_all_stats (visible: false). `query` is cut to 200 letters. With the
-- caller's rights, not the owner's.
-- right: consume, observe
-- null: client_address, state, state_since, wait_event, query_start, started_at, query
create function msgtx.describe_sessions(pids int[])
returns table (
    pid int, role text, application_name text, client_address text, visible boolean, state text, state_since timestamptz,
    wait_event text, query_start timestamptz, started_at timestamptz, query text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select a.pid, a.usename::text, a.application_name, host(a.client_addr), a.backend_start is not null, a.state,
           a.state_change, a.wait_event_type || ' ' || a.wait_event, a.query_start, a.backend_start,
           case when a.backend_start is not null then left(a.query, 200) end
    from pg_stat_activity a
    where a.pid = any(pids) and a.datname = current_database()
    order by a.pid;
end $$;
