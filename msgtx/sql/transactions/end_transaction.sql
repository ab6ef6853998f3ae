-- end_transaction(name, decided_by) aborts a transaction that its producer will not end: decided_by is admin (by
-- administrators of every topic) or resolve. Resolve leaves transactions that are sealed for an outside decision. It
-- may decide a name without rows, if that is of the current epoch and the newest + 1. A transaction with rows and no
-- decision is ended also without its transaction or producer row: nothing else would end it. → the outcome (COMMIT,
-- ABORT), OPEN if it stays undecided, UNKNOWN if there is nothing to decide.
-- Locks the producer (exclusive). Writes transaction_decision. Flushed.
-- right: produce, admin of all topics
create function msgtx.end_transaction(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_decided_by text)
returns text language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    state record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_producer(in_producer_id);
    if in_decided_by is null or in_decided_by not in ('admin', 'resolve') then
        raise exception using errcode = 'MX042', message = format(
            '%s is no reason to end a transaction: it is admin or resolve', quote_nullable(in_decided_by)),
            detail = jsonb_build_object('name', 'decided_by', 'given', in_decided_by);
    end if;
    if not msgtx.acts_for_owner() and msgtx.patterns_of_caller('{admin}') is not null then
        if in_decided_by = 'admin' then
            raise exception using errcode = '42501', message = format(
                'role %s lacks the right to end others'' transactions: the owner of the schema gives it with'
                ' `msgtx db grant --role %s --can admin`', msgtx.caller(), quote_ident(msgtx.caller())),
                detail = jsonb_build_object('role', msgtx.caller(), 'right', 'admin');
        end if;
        ignored := msgtx.require_producers(array[in_producer_id]);
    end if;
    select s.* into state from msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number) s;
    if state.status = 'decided' then
        ignored := msgtx.flush_log();  -- its COMMIT may have waited in vain, see there
        return state.outcome;
    elsif exists (
        select from msgtx.seal_of(in_producer_id, in_producer_epoch, in_transaction_number) s where s.kind = 'external') then
        return 'OPEN';
    elsif state.status in ('open', 'sealed') or (state.status in ('new', 'concurrent') and in_decided_by = 'resolve')
        or exists (select from msgtx.transaction_of(in_producer_id, in_producer_epoch, in_transaction_number))
        or exists (
            select from msgtx.transaction_partition tp where tp.producer_id = in_producer_id
            and tp.producer_epoch = in_producer_epoch and tp.transaction_number = in_transaction_number) then
        ignored := msgtx.wake_readers(msgtx.insert_decision(
            in_producer_id, in_producer_epoch, in_transaction_number, 'ABORT', in_decided_by));
        return 'ABORT';
    end if;
    return 'UNKNOWN';
end $$;
