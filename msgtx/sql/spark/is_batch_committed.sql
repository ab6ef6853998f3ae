-- is_batch_committed(app_id, query_id, batch_id) → whether this batch of an application, or a later one of the same query,
-- is committed. STABLE: under a lock its caller asks with a new statement.
-- Reads spark_batch.
-- right: produce
create function msgtx.is_batch_committed(in_app_id text, in_query_id text, in_batch_id bigint)
returns boolean language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from msgtx.spark_batch b
        where b.app_id = in_app_id and b.query_id = in_query_id and b.batch_id >= in_batch_id)
$$;
