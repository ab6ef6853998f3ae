-- describe_queries(most) → the queries of Spark's applications, in order of their names, at most `most`; query_id is '' for
-- batches that a program counts itself. The fence row: the newest committed batch, when, and by which run. Attempts that
-- are undecided and can still be decided: how many, of which batch at first, since when.
-- Reads spark_batch and, through recent_attempts, spark_attempt, spark_floor; producer, transaction_decision.
-- right: observe of all topics
-- null: batch_id, decided_at, run_id, undecided_batch_id, undecided_since
-- plan: look-ups, nested loops
create function msgtx.describe_queries(most int default 1000)
returns table (
    app_id text, query_id text, batch_id bigint, decided_at timestamptz, run_id text, undecided int,
    undecided_batch_id bigint, undecided_since timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    with recursive written(app_id, query_id, place) as (
        (select b.app_id, b.query_id, 1 from msgtx.spark_batch b order by b.app_id, b.query_id limit 1)
        union all
        select n.app_id, n.query_id, w.place + 1
        from written w
        cross join lateral (
            select b.app_id, b.query_id from msgtx.spark_batch b
            where (b.app_id, b.query_id) > (w.app_id, w.query_id) order by b.app_id, b.query_id limit 1) n
        where w.place < most),
    tried(app_id, place) as (
        (select a.app_id, 1 from msgtx.spark_attempt a order by a.app_id limit 1)
        union all
        select n.app_id, t.place + 1
        from tried t
        cross join lateral (
            select a.app_id from msgtx.spark_attempt a where a.app_id > t.app_id order by a.app_id limit 1) n
        where t.place < most),
    open as materialized (
        select t.app_id, a.query_id, count(*)::int as attempts, min(a.batch_id) as batch_id, min(s.begun_at) as since
        from tried t
        cross join (values (true), (false)) k(of_program)
        cross join lateral msgtx.recent_attempts(t.app_id, k.of_program) a
        cross join lateral (
            select s.begun_at from msgtx.spark_attempt s where s.producer_id = a.producer_id limit 1) s
        where not exists (select from msgtx.decision_of(a.producer_id, 0, 0))
          and (select p.epoch = 0 from msgtx.producer p where p.producer_id = a.producer_id)
        group by t.app_id, a.query_id)
    select q.app_id, q.query_id, newest.batch_id, newest.decided_at, newest.run_id, coalesce(o.attempts, 0), o.batch_id,
           o.since
    from (select w.app_id, w.query_id from written w union select o.app_id, o.query_id from open o) q
    left join lateral (
        select b.batch_id, b.decided_at, b.run_id from msgtx.spark_batch b
        where b.app_id = q.app_id and b.query_id = q.query_id order by b.batch_id desc limit 1) newest on true
    left join open o on o.app_id = q.app_id and o.query_id = q.query_id
    order by q.app_id, q.query_id limit most;
end $$;
