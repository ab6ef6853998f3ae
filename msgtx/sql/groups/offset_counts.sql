-- offset_counts(name) → whether an offset that was committed with this transaction counts (no transaction: yes): unless it
-- is decided ABORT, or sealed and undecided. Without both rows it was committed, and its history is gone. In PL/pgSQL, which
-- keeps its plan: one in SQL would be planned in each call.
-- Reads transaction_decision, transaction_seal.
-- right: consume, observe
create function msgtx.offset_counts(in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint)
returns boolean language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return in_transaction_number is null or coalesce(
        (select d.outcome = 'COMMIT' from msgtx.transaction_decision d
         where d.producer_id = in_producer_id and d.producer_epoch = in_producer_epoch
           and d.transaction_number = in_transaction_number),
        (select false from msgtx.transaction_seal s
         where s.producer_id = in_producer_id and s.producer_epoch = in_producer_epoch
           and s.transaction_number = in_transaction_number),
        true);
end $$;
