-- expire_transaction(name) aborts a transaction by name, if it is past its own timeout or its session is gone (I12): its
-- producer lives on. One whose producer is gone has a timeout, too. Tries the producer's lock and never waits. → whether it
-- is aborted for that now, or was before. Writes transaction_decision. Flushed.
create function msgtx.expire_transaction(in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint)
returns boolean language plpgsql volatile as $$
declare
    state record;
    is_left boolean;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.try_lock_producer(in_producer_id) then
        return false;
    end if;
    select s.* into state from msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number) s;
    if state.status = 'decided' then
        return state.decided_by in ('timeout', 'session');
    end if;
    is_left := state.status = 'sealed' and msgtx.is_deserted(in_producer_id, in_producer_epoch, in_transaction_number);
    if not exists (
        select from msgtx.transaction_of(in_producer_id, in_producer_epoch, in_transaction_number) t
        left join lateral msgtx.seal_of(t.producer_id, t.producer_epoch, t.transaction_number) s on true
        where (msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at) or is_left)
          and s.kind is distinct from 'external') then
        return false;
    end if;
    return msgtx.wake_readers(msgtx.insert_decision(
        in_producer_id, in_producer_epoch, in_transaction_number, 'ABORT',
        case when is_left then 'session' else 'timeout' end));
end $$;
