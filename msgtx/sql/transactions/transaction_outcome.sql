-- transaction_outcome(name) → OPEN, COMMIT, ABORT or UNKNOWN, and who decided. Never raises for a name it does not know.
-- right: any
-- null: decided_by
create function msgtx.transaction_outcome(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, out outcome text, out decided_by text
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    select d.outcome, d.decided_by into outcome, decided_by
    from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number) d;
    if found then
        return;
    end if;
    outcome := case when exists (
        select from msgtx.transaction_of(in_producer_id, in_producer_epoch, in_transaction_number))
        then 'OPEN' else 'UNKNOWN' end;
end $$;
