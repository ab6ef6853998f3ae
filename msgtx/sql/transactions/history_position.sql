-- history_position(decision) → where a decision stands in the order of history: its time in µs since 1970, and its name.
create function msgtx.history_position(d msgtx.transaction_decision) returns bigint[] language sql stable as $$
    select array[(extract(epoch from d.decided_at) * 1000000)::bigint, d.producer_id, d.producer_epoch, d.transaction_number]
$$;
