-- append_and_decide(name, batches, offsets) is a whole transaction in one call, one SQL transaction and one flush: batches,
-- offsets and the COMMIT, all or nothing. No row of transaction or transaction_partition. Repeated, it answers with the
-- stored offsets. A name that has rows may not use it.
--   one row per batch: error, detail, base_offset, appended_at, duplicate; if any has an error, nothing was written
--   one row with an error alone: the transaction itself was refused
-- Locks the producer (exclusive from the start: share first would deadlock an original with its retry), groups (share),
-- partitions (exclusive, ascending). Writes record_batch, transaction_decision, consumer_group, group_offset. Flushed.
create function msgtx.append_and_decide(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[],
    group_names text[] default '{}', offset_partitions int[] default '{}', offsets bigint[] default '{}',
    metadata text[] default '{}', member_ids text[] default '{}', generations int[] default '{}',
    wake boolean default true)
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    found_batch record;
    offsets_error text;
    offsets_detail text;
    partitions int[];
    first_offsets bigint[];
    last_offsets bigint[];
    times timestamptz[];
    log_append_time boolean[];
    refusals int := 0;
    ignored boolean;
begin
    ignored := msgtx.refuse_stale_snapshot();
    ignored := msgtx.lock_producer(in_producer_id);
    if group_names <> '{}' then
        select c.error, c.detail into offsets_error, offsets_detail
        from msgtx.check_offsets(group_names, offset_partitions, offsets, metadata, member_ids) c;
    end if;
    ignored := msgtx.lock_partitions(batches);

    for found_batch in select f.* from msgtx.look_at_batches(batches) f order by f.ordinal loop
        if (batches[found_batch.ordinal].producer_id, batches[found_batch.ordinal].producer_epoch,
            batches[found_batch.ordinal].transaction_number)
           is distinct from (in_producer_id, in_producer_epoch, in_transaction_number) then
            raise exception using errcode = 'MX042', message = 'the batches of a call that decides must be of its transaction';
        end if;
        if found_batch.status <> 'new' or offsets_error is not null then
            return query select * from msgtx.refuse_whole(
                in_producer_id, in_producer_epoch, in_transaction_number, batches, found_batch,
                offsets_error, offsets_detail);
            return;
        end if;
        error := null;
        detail := null;
        duplicate := false;
        base_offset := found_batch.base_offset;
        appended_at := found_batch.appended_at;
        if found_batch.verdict <> 'store' then
            select r.error, r.detail into error, detail
            from msgtx.batch_refusal(batches[found_batch.ordinal], found_batch, found_batch) r;
            refusals := refusals + (error is not null)::int;
        end if;
        partitions[found_batch.ordinal] := batches[found_batch.ordinal].partition_id;
        first_offsets[found_batch.ordinal] := base_offset;
        last_offsets[found_batch.ordinal] := base_offset + cardinality(batches[found_batch.ordinal]."values") - 1;
        times[found_batch.ordinal] := appended_at;
        log_append_time[found_batch.ordinal] := found_batch.log_append_time;
        return next;
    end loop;
    if refusals > 0 then
        return;
    end if;
    ignored := msgtx.store_batches(batches, first_offsets, times, log_append_time, null);
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
        perform pg_notify('msgtx', array_to_string(partitions, ','));
    end if;
end $$;
