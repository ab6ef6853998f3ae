-- seal_of(name) → the seal of a transaction, also of one that is decided since; no row: it has none. Reads transaction_seal.
create function msgtx.seal_of(in_producer_id bigint, in_epoch int, in_number bigint)
returns setof msgtx.transaction_seal language sql stable as $$
    select s.* from msgtx.transaction_seal s
    where s.producer_id = in_producer_id and s.producer_epoch = in_epoch and s.transaction_number = in_number limit 1
$$;
