-- complete_prepared(name, outcome) decides a transaction that is prepared for an outside decision, by its name alone, from
-- any process. Idempotent: the same outcome again is a success. A transaction that is not prepared, decided otherwise, or
-- unknown is refused.
-- Locks the producer (exclusive). Writes the rows of decide. Flushed.
-- right: produce
-- null: outcome
create function msgtx.complete_prepared(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_outcome text,
    out outcome text, out error text, out detail text
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    decided record;
    name text := format('%s.%s.%s', in_producer_id, in_producer_epoch, in_transaction_number);
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_producer(in_producer_id);
    ignored := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]);
    select d.outcome, d.decided_by into decided
    from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number) d;
    if decided.outcome is null and exists (
        select from msgtx.seal_of(in_producer_id, in_producer_epoch, in_transaction_number) s where s.kind = 'external') then
        select d.outcome, d.decided_by into decided
        from msgtx.decide(in_producer_id, in_producer_epoch, in_transaction_number, in_outcome) d;
    elsif decided.outcome is not null then
        ignored := msgtx.flush_log();  -- the first call's COMMIT may have waited in vain, see there
    end if;
    outcome := decided.outcome;
    if outcome is distinct from in_outcome then
        error := 'InvalidTransactionState: ' || case when outcome is null then 'unknown' else 'decided' end;
        detail := case
            when outcome is null then format(
                'transaction %s is not prepared, or not known (any more); `msgtx transactions prepared` lists what waits',
                    name)
            else format('transaction %s is decided already, and stays so: %s by %s; settle the other party by that',
                        name, outcome, decided.decided_by) end;
    end if;
end $$;
