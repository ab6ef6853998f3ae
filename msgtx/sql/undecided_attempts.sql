-- undecided_attempts(app_id, query_id, batch_id) → the producer ids of attempts of this batch and of earlier ones that have no
-- decision, in the order of producers' locks.
-- Reads spark_attempt, transaction_decision.
create function msgtx.undecided_attempts(in_app_id text, in_query_id text, in_batch_id bigint)
returns table (producer_id bigint) language sql stable as $$
    select a.producer_id from msgtx.spark_attempt a
    where a.app_id = in_app_id and a.query_id = in_query_id and a.batch_id <= in_batch_id
      and (select true from msgtx.transaction_decision d
           where d.producer_id = a.producer_id and d.producer_epoch = 0 and d.transaction_number = 0) is null
    order by (a.producer_id << 32) >> 32
$$;
