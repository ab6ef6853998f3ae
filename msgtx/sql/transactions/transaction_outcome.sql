-- transaction_outcome(name) → OPEN, COMMIT, ABORT or UNKNOWN, and who decided. Never raises for a name it does not know.
-- A decision is flushed, but on a standby: see flush_log.
-- right: any
-- null: decided_by
create function msgtx.transaction_outcome(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, out outcome text, out decided_by text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    select d.outcome, d.decided_by into outcome, decided_by
    from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number) d;
    if found then
        if not pg_is_in_recovery() then
            perform msgtx.flush_log();
        end if;
        return;
    end if;
    outcome := case when exists (
        select from msgtx.transaction_of(in_producer_id, in_producer_epoch, in_transaction_number))
        then 'OPEN' else 'UNKNOWN' end;
end $$;
