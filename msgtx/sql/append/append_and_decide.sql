-- append_and_decide(name, batches, offsets) is a whole transaction in one call, one SQL transaction and one flush: batches,
-- offsets and the COMMIT, all or nothing. No row of transaction or transaction_partition. Repeated, it answers with the
-- stored offsets. A name that has rows may not use it.
--   one row per batch: error, detail, base_offset, appended_at, duplicate; if any has an error, nothing was written
--   one row with an error alone: the transaction itself was refused
--   no row: another session holds a lock that it needs, and skip_locked is true (several that go together, see there)
--   wake            have waiting consumers woken, which no other client notifies
-- Locks the producer (exclusive from the start: share first would deadlock an original with its retry), groups (share),
-- partitions (exclusive, ascending). Writes record_batch, transaction_decision, consumer_group, group_offset. Flushed.
-- right: produce
-- null: base_offset, appended_at, duplicate
-- plan: look-ups, in order
create function msgtx.append_and_decide(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[],
    wake boolean default true, skip_locked boolean default false,
    group_names text[] default '{}', offset_partitions int[] default '{}', offsets bigint[] default '{}',
    metadata text[] default '{}', member_ids text[] default '{}', generations int[] default '{}',
    read_identities text[] default '{}', instance_ids text[] default '{}')
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    offsets_error text;
    offsets_detail text;
    b msgtx.batch;
    epoch_now int;
    newest_decided bigint;  -- of the producer's epoch
    is_undecided boolean;  -- the producer's newest transaction that has rows
    place record;
    partitions int[];
    first_offsets bigint[];
    last_offsets bigint[];
    times timestamptz[];
    stamped boolean[];
    usual boolean;
    at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot()
        and (not skip_locked or msgtx.try_lock_transaction(in_producer_id, group_names, batches))
        and msgtx.lock_producer(in_producer_id)
        and (msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]));
begin
    if not ignored then
        return;
    end if;
    if group_names <> '{}' then
        select c.error, c.detail into offsets_error, offsets_detail
        from msgtx.check_offsets(group_names, offset_partitions, offsets, metadata, member_ids, generations, instance_ids,
                                 read_identities) c;
    end if;
    ignored := msgtx.lock_partitions(batches);

    -- The usual case, by single rows: each node of a statement, and each expression here, is set up anew in every SQL
    -- transaction. Usual: transaction_state says new, and check_batch says store; else they are asked.
    select p.epoch,
           (select d.transaction_number from msgtx.transaction_decision d
            where d.producer_id = in_producer_id and d.producer_epoch = in_producer_epoch
            order by d.transaction_number desc limit 1),
           (select (select true from msgtx.transaction_decision d
                    where d.producer_id = in_producer_id and d.producer_epoch = t.producer_epoch
                      and d.transaction_number = t.transaction_number limit 1) is null
            from (select t.producer_epoch, t.transaction_number from msgtx.transaction t
                  where t.producer_id = in_producer_id
                  order by t.producer_epoch desc, t.transaction_number desc limit 1) t)
    into epoch_now, newest_decided, is_undecided from msgtx.producer p where p.producer_id = in_producer_id;
    usual := offsets_error is null and epoch_now = in_producer_epoch and is_undecided is not true
        and in_transaction_number = coalesce(newest_decided, -1) + 1;
    foreach b in array batches loop
        exit when usual is not true;
        place := msgtx.usual_place(b.partition_id, in_producer_id, in_producer_epoch, b.base_sequence,
                                   msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values));
        at := at + 1;
        partitions[at] := b.partition_id;
        first_offsets[at] := place.base_offset;
        last_offsets[at] := place.base_offset + cardinality(b."values") - 1;
        times[at] := place.appended_at;
        stamped[at] := place.log_append_time;
        usual := place.is_usual and b.producer_id = in_producer_id and b.producer_epoch = in_producer_epoch
            and b.transaction_number = in_transaction_number
            and (not place.needs_keys or b.keys is not null and array_position(b.keys, null) is null);
    end loop;
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{produce}', array(select u.partition_id from unnest(batches) u));
    end if;
    if usual is not true then
        return query select r.* from msgtx.refuse_whole(
            in_producer_id, in_producer_epoch, in_transaction_number, batches, offsets_error, offsets_detail) r;
        if found then
            return;
        end if;
        select array_agg(f.partition_id), array_agg(f.base_offset), array_agg(f.base_offset + f.record_count - 1),
               array_agg(f.appended_at), array_agg(f.log_append_time)
        into partitions, first_offsets, last_offsets, times, stamped
        from msgtx.look_at_batches(batches) f;
    end if;

    at := 0;
    foreach b in array batches loop
        at := at + 1;
        base_offset := first_offsets[at];
        appended_at := times[at];
        duplicate := false;
        insert into msgtx.record_batch (
            partition_id, base_offset, last_offset, producer_id, producer_epoch, transaction_number,
            base_sequence, last_sequence, appended_at, max_timestamp,
            record_count, byte_size,
            keys, "values", timestamps, header_counts, header_keys, header_values)
        values (
            b.partition_id, first_offsets[at], last_offsets[at], in_producer_id, in_producer_epoch, in_transaction_number,
            b.base_sequence, b.base_sequence + last_offsets[at] - first_offsets[at], times[at],
            case when stamped[at] then floor(extract(epoch from times[at]) * 1000)::bigint else b.max_timestamp end,
            cardinality(b."values"), msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values),
            b.keys, b."values", case when not stamped[at] then b.timestamps end,
            b.header_counts, b.header_keys, b.header_values);
        return next;
    end loop;
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
end $$;
