-- append_and_decide(name, batches, offsets) is a whole transaction in one call, one SQL transaction and one flush: batches,
-- offsets and the COMMIT, all or nothing. No row of transaction or transaction_partition. Repeated, it answers with the
-- stored offsets. A name that has rows may not use it.
--   one row per batch: error, detail, base_offset, appended_at, duplicate; if any has an error, nothing was written
-- Locks the producer (exclusive from the start: share first would deadlock an original with its retry), groups (share),
-- partitions (exclusive, ascending). Writes record_batch, transaction_decision, consumer_group, group_offset. Flushed.
create function msgtx.append_and_decide(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[],
    group_names text[] default '{}', offset_partitions int[] default '{}', offsets bigint[] default '{}',
    metadata text[] default '{}', member_ids text[] default '{}', generations int[] default '{}',
    wake boolean default true)
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    state msgtx.transaction_status;
    refused record;
    b msgtx.batch;
    result record;
    decided record;
    partition_before int := 0;
    refusals int := 0;
    partitions int[] := '{}';
    first_offsets bigint[] := '{}';
    last_offsets bigint[] := '{}';
    times timestamptz[] := '{}';
    append_time boolean[] := '{}';
    ignored boolean;
    i int := 0;
begin
    ignored := msgtx.refuse_stale_snapshot();
    ignored := msgtx.lock_producer(in_producer_id);
    state := msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number);
    if state.status = 'decided' and state.outcome = 'COMMIT' then
        select d.partitions, d.first_offsets, d.decided_at into decided from msgtx.transaction_decision d
        where d.producer_id = in_producer_id and d.producer_epoch = in_producer_epoch
          and d.transaction_number = in_transaction_number;
        duplicate := true;
        appended_at := decided.decided_at;
        foreach b in array batches loop
            base_offset := decided.first_offsets[array_position(decided.partitions, b.partition_id)];
            return next;
        end loop;
        return;
    end if;
    duplicate := false;
    if state.status <> 'new' then
        refused := msgtx.refusal(state, in_producer_id, in_producer_epoch, in_transaction_number);
        error := coalesce(case when refused.error = 'InvalidProducerEpoch' then 'ProducerFenced' else refused.error end,
                          'InvalidTransactionState');
        detail := coalesce(refused.detail, format('transaction %s.%s.%s has rows: append and decide it in steps',
                                                  in_producer_id, in_producer_epoch, in_transaction_number));
        return next;
        return;
    end if;
    refused := msgtx.check_offsets(group_names, offset_partitions, offsets, metadata, member_ids);
    if refused.error is not null then
        error := refused.error;
        detail := refused.detail;
        return next;
        return;
    end if;

    foreach b in array batches loop
        if b.partition_id <= partition_before
           or (b.producer_id, b.producer_epoch, b.transaction_number)
              is distinct from (in_producer_id, in_producer_epoch, in_transaction_number) then
            raise exception using errcode = 'MX042',
                message = 'batches must be of this transaction, one per partition, in ascending order of partition';
        end if;
        partition_before := b.partition_id;
        ignored := msgtx.lock_partition(b.partition_id);
        result := msgtx.check_batch(b, state);
        refusals := refusals + (result.error is not null)::int;
        error := result.error;
        detail := result.detail;
        base_offset := result.base_offset;
        appended_at := result.appended_at;
        partitions := partitions || b.partition_id;
        first_offsets := first_offsets || result.base_offset;
        last_offsets := last_offsets || result.base_offset + cardinality(b."values") - 1;
        times := times || result.appended_at;
        append_time := append_time || result.log_append_time;
        return next;
    end loop;
    if refusals > 0 then
        return;
    end if;

    foreach b in array batches loop
        i := i + 1;
        ignored := msgtx.store_batch(b, first_offsets[i], times[i], false, append_time[i]);
    end loop;
    insert into msgtx.transaction_decision (
        producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by,
        partitions, first_offsets, last_offsets)
    values (in_producer_id, in_producer_epoch, in_transaction_number, 'COMMIT', msgtx.clock(), 'client',
            partitions, first_offsets, last_offsets);
    ignored := msgtx.insert_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations,
                                    in_producer_id, in_producer_epoch, in_transaction_number);
    ignored := msgtx.flush_at_commit();
    if wake then
        perform pg_notify('msgtx', array_to_string(partitions, ','));
    end if;
end $$;
