-- undecided_attempts(app_id, query_id, batch_id) → the producer ids of undecided attempts that this batch may end, in the
-- order of producers' locks: its own and those of earlier batches. A stream's batch may also end those of other queries of
-- the application, since only one query at a time writes for it. query_id null: of every query, up to this batch. An id
-- that has expired or is fenced writes nothing any more, and no decision can be about it. Reads, through recent_attempts,
-- spark_attempt and spark_floor; producer, transaction_decision.
create function msgtx.undecided_attempts(in_app_id text, in_query_id text, in_batch_id bigint)
returns table (producer_id bigint) language sql stable as $$
    select a.producer_id
    from (values (true), (false)) k(of_program)
    cross join lateral msgtx.recent_attempts(in_app_id, k.of_program) a
    where coalesce(k.of_program = (in_query_id = ''), true)
      and (a.batch_id <= in_batch_id and (in_query_id is null or a.query_id = in_query_id)
           or in_query_id <> '' and a.query_id <> in_query_id)
      and not exists (select from msgtx.decision_of(a.producer_id, 0, 0))
      and (select p.epoch = 0 from msgtx.producer p where p.producer_id = a.producer_id)
    order by (a.producer_id << 32) >> 32
$$;
