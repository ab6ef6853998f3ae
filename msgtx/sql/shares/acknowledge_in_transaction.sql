-- acknowledge_in_transaction(name, groups, members, partitions, ranges, answers, reasons, delays) answers for records in a
-- transaction, which it opens if need be: until the decision they are pending, and nothing else may answer for them. All of
-- it, or nothing; see apply_answers.
--   in_call_number   the same one again has its effect once
--   timeout_ms       of the transaction that this opens; null: the producer's
--   error, detail    the transaction refuses it, as it would a record
-- Locks the producer (share), share partitions (exclusive, ascending); inserts the transaction row last: it can wait. Writes
-- transaction and, through apply_answers, share_state, share_pending. Flushed: the decision relies on it, and looks at it no
-- more.
-- right: consume
-- plan: look-ups
create function msgtx.acknowledge_in_transaction(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_call_number bigint,
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    answers text[], reasons text[], delays_ms int[],
    timeout_ms int default null, client_host text default null, client_process int default null,
    out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    state record;
    ignored boolean := msgtx.refuse_stale_snapshot() and msgtx.lock_producer_shared(in_producer_id);
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id])
        and msgtx.require_rights('{consume}', partition_ids) and msgtx.require_names('group', group_names);
    ignored := msgtx.check_timeout(acknowledge_in_transaction.timeout_ms);
    select s.* into state from msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number) s;
    if state.status not in ('open', 'new') then
        select r.error, r.detail into error, detail from msgtx.refusal(
            state.status, state.outcome, state.decided_by, state.current_epoch,
            in_producer_id, in_producer_epoch, in_transaction_number) r;
        return;
    end if;
    ignored := msgtx.answer_or_raise(
        group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons, delays_ms,
        in_call_number, in_producer_id, in_producer_epoch, in_transaction_number);
    if state.status = 'new' then
        insert into msgtx.transaction (
            producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
            client_host, client_process, database_backend)
        select p.producer_id, in_producer_epoch, in_transaction_number, msgtx.clock(),
               coalesce(acknowledge_in_transaction.timeout_ms, p.timeout_ms),
               left(acknowledge_in_transaction.client_host, 255), acknowledge_in_transaction.client_process, pg_backend_pid()
        from msgtx.producer p where p.producer_id = in_producer_id
        on conflict do nothing;
    end if;
end $$;
