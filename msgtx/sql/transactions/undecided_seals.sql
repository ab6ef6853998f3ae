-- undecided_seals(most) → prepared transactions: sealed, and without a decision; the oldest first. `found` is how many there
-- are. partitions: on how many of them it wrote; a transaction of offsets only has none. Looks at every seal of the history.
-- Reads transaction_seal, transaction_decision, transaction, producer.
-- right: observe of all topics
-- null: transactional_id, deadline, opened_at, timeout_ms, client_host, client_process, database_backend
create function msgtx.undecided_seals(most int)
returns table (
    producer_id bigint, producer_epoch int, transaction_number bigint, transactional_id text, kind text,
    sealed_at timestamptz, deadline timestamptz, opened_at timestamptz, timeout_ms int, client_host text,
    client_process int, database_backend int, partitions int, checked_at timestamptz, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
begin
    return query
    select s.producer_id, s.producer_epoch, s.transaction_number, p.transactional_id, s.kind, s.sealed_at, s.deadline,
           t.opened_at, t.timeout_ms, t.client_host, t.client_process, t.database_backend, cardinality(s.partitions),
           msgtx.clock(), count(*) over ()
    from msgtx.transaction_seal s
    left join lateral msgtx.transaction_of(s.producer_id, s.producer_epoch, s.transaction_number) t on true
    left join lateral (select p.* from msgtx.producer p where p.producer_id = s.producer_id limit 1) p on true
    where not exists (select from msgtx.decision_of(s.producer_id, s.producer_epoch, s.transaction_number))
    order by s.sealed_at
    limit most;
end $$;
