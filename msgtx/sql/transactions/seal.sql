-- seal(name, kind, tails, offsets) ends the writing part of a transaction that another party decides: its records are
-- verified, its offsets are stored and wait, appends are refused from here on. Repeated, it answers the same.
--   in_kind      'session': decide_sealed in a user's SQL transaction, until the deadline; 'external': decide, whenever
--   seat         of the session that is to decide (take_seat): when it is left, anyone may abort
--   tail_*       as for decide: what is not there (a crash of the server) turns the seal into an abort
--   deadline     when the transaction's own timeout is over; null for an external one, which has none
--   partitions, first_offsets, last_offsets, signature   what decide_sealed is to be given
--   error        nothing is sealed; after TransactionAborted last_sequences are the last stored ones, as decide's
-- Locks the producer (exclusive), groups (share). Writes transaction_seal, transaction (of a transaction of offsets only),
-- transaction_decision, consumer_group, group_offset. Flushed; for a session by its COMMIT, which comes later in the WAL, if
-- there is no standby to wait for: a session may be on another primary than its seal.
-- right: produce
-- null: last_sequences, deadline, partitions, first_offsets, last_offsets, signature
-- plan: look-ups, in order
create function msgtx.seal(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_kind text,
    tail_partitions int[] default '{}', tail_sequences bigint[] default '{}',
    group_names text[] default '{}', offset_partitions int[] default '{}', offsets bigint[] default '{}',
    metadata text[] default '{}', member_ids text[] default '{}', generations int[] default '{}',
    read_identities text[] default '{}', instance_ids text[] default '{}', timeout_ms int default null,
    client_host text default null, client_process int default null, seat int default null,
    out error text, out detail text, out last_sequences bigint[], out deadline timestamptz,
    out partitions int[], out first_offsets bigint[], out last_offsets bigint[], out signature bytea
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    state record;
    overdue timestamptz;
    aborted_by text;
    flushes constant boolean := in_kind is distinct from 'session' or current_setting('synchronous_standby_names') <> '';
    ignored boolean := msgtx.refuse_stale_snapshot() and msgtx.lock_producer(in_producer_id);
begin
    if in_kind is null or in_kind not in ('session', 'external') then
        raise exception using errcode = 'MX042', message = format('%s is no kind of a seal', quote_nullable(in_kind)),
            detail = jsonb_build_object('name', 'kind', 'given', in_kind);
    end if;
    ignored := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]);
    select s.* into state from msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number) s;
    if state.status = 'sealed' then
        select s.deadline, s.partitions, s.first_offsets, s.last_offsets, msgtx.seal_signature(
                   in_producer_id, in_producer_epoch, in_transaction_number, s.deadline, s.partitions, s.first_offsets,
                   s.last_offsets)
        into deadline, partitions, first_offsets, last_offsets, signature
        from msgtx.seal_of(in_producer_id, in_producer_epoch, in_transaction_number) s where s.kind = in_kind;
        if found then
            ignored := not flushes or msgtx.flush_log();  -- the first call's COMMIT may have waited in vain, see there
            return;
        end if;
    end if;
    if state.status not in ('open', 'new') then
        select r.error, r.detail into error, detail from msgtx.refusal(
            state.status, state.outcome, state.decided_by, state.current_epoch,
            in_producer_id, in_producer_epoch, in_transaction_number) r;
        if state.outcome = 'ABORT' then
            last_sequences := msgtx.last_sequences(in_producer_id, in_producer_epoch, null, tail_partitions);
            ignored := msgtx.flush_log();
        end if;
        return;
    end if;

    ignored := not flushes or msgtx.flush_at_commit();
    if group_names <> '{}' then
        select c.error, c.detail into error, detail from msgtx.check_offsets(
            group_names, offset_partitions, offsets, metadata, member_ids, generations, instance_ids, read_identities) c;
        if error is not null then
            return;
        end if;
    end if;
    ignored := msgtx.check_timeout(timeout_ms);
    if state.status = 'new' and tail_partitions = '{}' then
        insert into msgtx.transaction (
            producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
            client_host, client_process, database_backend)
        select p.producer_id, in_producer_epoch, in_transaction_number, msgtx.clock(),
               coalesce(seal.timeout_ms, p.timeout_ms), left(seal.client_host, 255), seal.client_process, pg_backend_pid()
        from msgtx.producer p where p.producer_id = in_producer_id;
    end if;
    overdue := (
        select t.opened_at + t.timeout_ms * interval '1 ms'
        from msgtx.transaction_of(in_producer_id, in_producer_epoch, in_transaction_number) t);
    last_sequences := msgtx.last_sequences(in_producer_id, in_producer_epoch, in_transaction_number, tail_partitions);
    aborted_by := case
        when exists (select from unnest(last_sequences, tail_sequences) t(stored, sent) where t.stored <> t.sent) then 'tail'
        when overdue < msgtx.clock() then 'timeout' end;
    if aborted_by is not null then
        ignored := msgtx.wake_readers(msgtx.insert_decision(
            in_producer_id, in_producer_epoch, in_transaction_number, 'ABORT', aborted_by));
        last_sequences := msgtx.last_sequences(in_producer_id, in_producer_epoch, null, tail_partitions);
        error := 'TransactionAborted: ' || aborted_by;
        detail := format('transaction %s.%s.%s was aborted (reason: %s)',
                         in_producer_id, in_producer_epoch, in_transaction_number, aborted_by);
        return;
    end if;

    deadline := case when in_kind = 'session' then overdue end;
    select s.partitions, s.first_offsets, s.last_offsets into partitions, first_offsets, last_offsets
    from msgtx.transaction_spans(in_producer_id, in_producer_epoch, in_transaction_number) s;
    signature := msgtx.seal_signature(
        in_producer_id, in_producer_epoch, in_transaction_number, deadline, partitions, first_offsets, last_offsets);
    ignored := msgtx.insert_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations,
                                    in_producer_id, in_producer_epoch, in_transaction_number);
    insert into msgtx.transaction_seal (
        producer_id, producer_epoch, transaction_number, kind, sealed_at, deadline, partitions, first_offsets, last_offsets,
        group_ids, group_partitions, commit_sequences, seat)
    select in_producer_id, in_producer_epoch, in_transaction_number, in_kind, msgtx.clock(), deadline,
           partitions, first_offsets, last_offsets,
           coalesce(array_agg(w.group_id), '{}'), coalesce(array_agg(w.partition_id), '{}'),
           coalesce(array_agg(w.commit_sequence), '{}'), case when in_kind = 'session' then seal.seat end
    from (
        select newest.group_id, newest.partition_id, newest.commit_sequence
        from unnest(group_names, offset_partitions) o(group_name, partition_id)
        cross join lateral (select c.group_id from msgtx.consumer_group c where c.name = o.group_name limit 1) c
        cross join lateral (
            select g.group_id, g.partition_id, g.commit_sequence from msgtx.group_offset g
            where g.group_id = c.group_id and g.partition_id = o.partition_id and g.producer_id = in_producer_id
              and g.producer_epoch = in_producer_epoch and g.transaction_number = in_transaction_number
            order by g.commit_sequence desc limit 1) newest) w;
end $$;
