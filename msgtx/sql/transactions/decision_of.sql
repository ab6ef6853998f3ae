-- decision_of(name) → how a transaction was decided; no row: it is undecided, or its history is gone. Plain SQL: it becomes
-- a look-up by the whole key in the statement that calls it, as transaction_of, seal_of and marker_of do (decision 0003).
-- Reads transaction_decision.
create function msgtx.decision_of(in_producer_id bigint, in_epoch int, in_number bigint)
returns setof msgtx.transaction_decision language sql stable as $$
    select d.* from msgtx.transaction_decision d
    where d.producer_id = in_producer_id and d.producer_epoch = in_epoch and d.transaction_number = in_number limit 1
$$;
