-- recent_attempts(app_id, of_program) → the attempts of an application, of a program's batches or of queries, from its floor
-- on, in the order in which they were registered. Those before it are decided.
-- Reads spark_attempt, spark_floor.
create function msgtx.recent_attempts(in_app_id text, in_of_program boolean)
returns table (query_id text, batch_id bigint, producer_id bigint) language sql stable as $$
    select a.query_id, a.batch_id, a.producer_id from msgtx.spark_attempt a
    where a.app_id = in_app_id and (a.query_id = '') = in_of_program
      and (a.producer_id & 1099511627775) >= coalesce((
          select f.decided_below from msgtx.spark_floor f
          where f.app_id = in_app_id and f.of_program = in_of_program order by f.decided_below desc limit 1), 0)
    order by a.producer_id & 1099511627775 offset 0
$$;
