-- append_and_decide(name, batches, offsets) is a whole transaction in one call, one SQL transaction and one flush: batches,
-- offsets and the COMMIT, all or nothing. No row of transaction or transaction_partition. Repeated, it answers with the
-- stored offsets. A name that has rows may not use it. wake: no other client notifies waiting consumers of it.
--   one row per batch: error, detail, base_offset, appended_at, duplicate; if any has an error, nothing was written
--   one row with an error alone: the transaction itself was refused
-- Locks the producer (exclusive from the start: share first would deadlock an original with its retry), groups (share),
-- partitions (exclusive, ascending). Writes record_batch, transaction_decision, consumer_group, group_offset. Flushed.
create function msgtx.append_and_decide(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[],
    group_names text[] default '{}', offset_partitions int[] default '{}', offsets bigint[] default '{}',
    metadata text[] default '{}', member_ids text[] default '{}', generations int[] default '{}',
    wake boolean default true, read_identities text[] default '{}', instance_ids text[] default '{}')
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    offsets_error text;
    offsets_detail text;
    partitions int[];
    first_offsets bigint[];
    last_offsets bigint[];
    times timestamptz[];
    log_append_time boolean[];
    fine boolean;
    ignored boolean;
begin
    ignored := msgtx.refuse_stale_snapshot();
    ignored := msgtx.lock_producer(in_producer_id);
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_producers(array[in_producer_id]);
    end if;
    if group_names <> '{}' then
        select c.error, c.detail into offsets_error, offsets_detail
        from msgtx.check_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations, instance_ids,
                                 read_identities) c;
    end if;
    ignored := msgtx.lock_partitions(batches);

    -- Few and large statements: each one, and each expression, is set up anew in every SQL transaction.
    select array_agg(f.partition_id), array_agg(f.base_offset), array_agg(f.base_offset + f.record_count - 1),
           array_agg(f.appended_at), array_agg(f.log_append_time),
           bool_and(f.status = 'new' and f.verdict = 'store' and f.producer_id = in_producer_id
                    and f.producer_epoch = in_producer_epoch and f.transaction_number = in_transaction_number)
    into partitions, first_offsets, last_offsets, times, log_append_time, fine
    from msgtx.look_at_batches(batches) f;
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{produce}', array(select u.partition_id from unnest(batches) u));
    end if;
    if fine is not true or offsets_error is not null then
        return query select r.* from msgtx.refuse_whole(
            in_producer_id, in_producer_epoch, in_transaction_number, batches, offsets_error, offsets_detail) r;
        if found then
            return;
        end if;
    end if;

    with stored as (
        insert into msgtx.record_batch (
            partition_id, base_offset, last_offset, producer_id, producer_epoch, transaction_number,
            base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size,
            keys, "values", timestamps, header_counts, header_keys, header_values)
        select s.* from msgtx.rows_to_store(batches, first_offsets, times, log_append_time) s)
    insert into msgtx.transaction_decision (
        producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by,
        partitions, first_offsets, last_offsets)
    values (in_producer_id, in_producer_epoch, in_transaction_number, 'COMMIT', msgtx.clock(), 'client',
            partitions, first_offsets, last_offsets);
    if group_names <> '{}' then
        ignored := msgtx.insert_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations,
                                        in_producer_id, in_producer_epoch, in_transaction_number);
    end if;
    ignored := msgtx.flush_at_commit();
    if wake then
        ignored := msgtx.wake_readers(partitions);
    end if;
    return query select null::text, null::text, o.base_offset, o.appended_at, false
    from unnest(first_offsets, times) o(base_offset, appended_at);
end $$;
