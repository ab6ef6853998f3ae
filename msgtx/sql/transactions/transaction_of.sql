-- transaction_of(name) → the row of a transaction that was opened; no row: it was not, or its history is gone. Reads
-- transaction.
create function msgtx.transaction_of(in_producer_id bigint, in_epoch int, in_number bigint)
returns setof msgtx.transaction language sql stable as $$
    select t.* from msgtx.transaction t
    where t.producer_id = in_producer_id and t.producer_epoch = in_epoch and t.transaction_number = in_number limit 1
$$;
