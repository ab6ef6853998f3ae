-- last_batch(app_id, query_id) → the newest committed batch of an application's query, null if there is none.
-- Reads spark_batch.
-- right: produce
-- null: value
create function msgtx.last_batch(in_app_id text, in_query_id text)
returns bigint language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select b.batch_id from msgtx.spark_batch b
    where b.app_id = in_app_id and b.query_id = in_query_id order by b.batch_id desc limit 1
$$;
