-- describe_mirrors(name) → the mirror of a name whose target this is; null: all, in order of their names. moved_ms, seen_ms:
-- how long ago its progress moved, and its run was heard of; error: why that has ended. Reads mirror.
-- right: observe of all topics
-- null: source, error
create function msgtx.describe_mirrors(in_name text default null)
returns table (
    name text, source text, source_address text, client_host text, client_process int, started_at timestamptz,
    moved_ms bigint, seen_ms bigint, records bigint, lag_records bigint, lag_ms bigint, error text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select m.name, m.source, m.source_address, m.client_host, m.client_process, m.started_at,
           greatest(extract(epoch from msgtx.clock() - m.moved_at) * 1000, 0)::bigint,
           greatest(extract(epoch from msgtx.clock() - m.seen_at) * 1000, 0)::bigint, m.records, m.lag_records, m.lag_ms,
           m.error
    from msgtx.mirror m where in_name is null or m.name = in_name order by m.name
$$;
