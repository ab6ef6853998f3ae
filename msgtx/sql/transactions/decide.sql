-- decide(name, outcome, tails, offsets) ends a transaction: phase one. Idempotent by name: the same outcome again is a
-- success. A transaction without a row is decided all the same, so that a late append meets the decision (P25). A
-- commit verifies its tail: a missing row (a crash of the server) turns it into an abort, never into a hole.
--   tail_partitions, tail_sequences   every partition handed to the database, and the last sequence sent there
--   outcome                           how it ended, null if nothing was decided; error and detail say why
--   last_sequences                    the last stored sequence on each of tail_partitions, −1 if none, null if deleted
-- A sealed transaction was verified at the seal, and its offsets are stored: for an outside party it is decided by its
-- name alone, also by an older epoch; for a user's session it can only be aborted here.
-- Locks the producer (exclusive), groups (share). Writes transaction_decision, consumer_group, group_offset. Flushed.
-- right: produce
-- null: outcome, decided_by, last_sequences, last_sequences[]
-- plan: look-ups, in order
create function msgtx.decide(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_outcome text,
    tail_partitions int[] default '{}', tail_sequences bigint[] default '{}',
    group_names text[] default '{}', offset_partitions int[] default '{}', offsets bigint[] default '{}',
    metadata text[] default '{}', member_ids text[] default '{}', generations int[] default '{}',
    read_identities text[] default '{}', instance_ids text[] default '{}',
    in_decided_by text default 'client', wake boolean default true,
    out outcome text, out decided_by text, out error text, out detail text, out last_sequences bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    state record;
    seal_kind text;
    partitions int[];
    name text := format('%s.%s.%s', in_producer_id, in_producer_epoch, in_transaction_number);
    ignored boolean;
begin
    ignored := msgtx.refuse_stale_snapshot();
    ignored := msgtx.lock_producer(in_producer_id);
    if in_decided_by is distinct from 'client' then
        raise exception using errcode = 'MX042', message = format(
            '%s is no reason to decide transaction %s: a client decides its own', quote_nullable(in_decided_by), name),
            detail = jsonb_build_object('name', 'decided_by', 'given', in_decided_by);
    end if;
    ignored := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]);
    select s.* into state from msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number) s;

    if state.status in ('sealed', 'fenced') then
        seal_kind := (
            select s.kind from msgtx.seal_of(in_producer_id, in_producer_epoch, in_transaction_number) s);
    end if;
    if state.status not in ('decided', 'open', 'new')
       and not (state.status = 'concurrent' and (in_outcome = 'ABORT' or tail_partitions <> '{}'))
       and (seal_kind = 'external' or (seal_kind = 'session' and in_outcome = 'ABORT')) is not true then
        select r.error, r.detail into error, detail from msgtx.refusal(
            state.status, state.outcome, state.decided_by, state.current_epoch,
            in_producer_id, in_producer_epoch, in_transaction_number) r;
        return;
    end if;

    if state.status <> 'decided' then
        if in_outcome = 'COMMIT' and group_names <> '{}' and seal_kind is null then
            select c.error, c.detail into error, detail from msgtx.check_offsets(
                group_names, offset_partitions, offsets, metadata, member_ids, generations, instance_ids, read_identities) c;
            if error is not null then
                return;
            end if;
        end if;
        outcome := in_outcome;
        decided_by := in_decided_by;
        if in_outcome = 'COMMIT' and tail_partitions <> '{}' and seal_kind is null then
            last_sequences := msgtx.last_sequences(
                in_producer_id, in_producer_epoch, in_transaction_number, tail_partitions);
            if exists (select from unnest(last_sequences, tail_sequences) t(stored, sent) where t.stored <> t.sent) then
                outcome := 'ABORT';
                decided_by := 'tail';
            end if;
        end if;
        partitions := msgtx.insert_decision(
            in_producer_id, in_producer_epoch, in_transaction_number, outcome, decided_by);
        if outcome = 'COMMIT' and group_names <> '{}' and seal_kind is null then
            ignored := msgtx.insert_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations,
                                            in_producer_id, in_producer_epoch, in_transaction_number);
        end if;
        if wake or seal_kind is not null then
            ignored := msgtx.wake_readers(case when seal_kind is null then tail_partitions else partitions end);
        end if;
    else
        outcome := state.outcome;
        decided_by := state.decided_by;
        ignored := msgtx.flush_log();  -- the first call's COMMIT may have waited in vain, see flush_log
    end if;

    if outcome = 'ABORT' then
        last_sequences := msgtx.last_sequences(in_producer_id, in_producer_epoch, null, tail_partitions);
        if in_outcome = 'COMMIT' then
            error := case when decided_by = 'fence' then 'ProducerFenced' else 'TransactionAborted: ' || decided_by end;
            detail := format('transaction %s was aborted (reason: %s)', name, decided_by);
        end if;
    elsif in_outcome = 'ABORT' then
        error := 'InvalidTransactionState: committed';
        detail := format('transaction %s is committed and cannot be aborted', name);
    end if;
end $$;
