-- lock_partitions(batches) waits for the exclusive locks on the batches' partitions. It refuses a malformed call:
-- partitions must ascend, with one batch each; a batch has columns of one length, valid times, the headers of its records,
-- and a whole producer or none. Third in the order of locks. More than the lock table can hold are refused at once.
create function msgtx.lock_partitions(batches msgtx.batch[]) returns boolean language plpgsql volatile as $$
declare
    b msgtx.batch;
    before int := 0;
    extent text;
    ignored boolean;
begin
    if cardinality(batches) > 0 is not true then
        raise exception using errcode = 'MX042', message = 'a call needs at least one batch',
            detail = jsonb_build_object('name', 'batches', 'reason', 'empty');
    end if;
    ignored := cardinality(batches) <= 256 or msgtx.require_lock_places(cardinality(batches), 'partitions');
    foreach b in array batches loop
        if b.partition_id <= before or b.partition_id is null then
            raise exception using errcode = 'MX042',
                message = 'batches must be in ascending order of partition, one for each',
                detail = jsonb_build_object('name', 'batches', 'reason', 'order');
        end if;
        extent := '[1:' || cardinality(b."values") || ']';
        if extent is null or array_dims(b."values") is distinct from extent
           or b.keys is not null and array_dims(b.keys) is distinct from extent
           or b.timestamps is not null and (array_dims(b.timestamps) is distinct from extent
                                            or (b.max_timestamp >= all (b.timestamps)
                                                and 0 <= all (b.timestamps)) is not true)
           or b.header_counts is not null and array_dims(b.header_counts) is distinct from extent
           or msgtx.is_record_time(b.max_timestamp) is not true then
            ignored := msgtx.check_times(array[b.max_timestamp] || b.timestamps);
            raise exception using errcode = 'MX042', message = format(
                'the batch for partition %s is empty, or its columns do not have one length, or a timestamp is missing or'
                ' above the highest', b.partition_id),
                detail = jsonb_build_object('name', 'batches', 'reason', 'columns', 'partition_id', b.partition_id);
        end if;
        if (b.producer_id is null) <> (b.producer_epoch is null)
           or (b.producer_id is null and num_nonnulls(b.transaction_number, b.base_sequence) > 0) then
            raise exception using errcode = 'MX042', message = format(
                'the batch for partition %s has one of producer id and epoch, or a sequence or a transaction without these',
                b.partition_id),
                detail = jsonb_build_object('name', 'batches', 'reason', 'producer', 'partition_id', b.partition_id);
        end if;
        if num_nonnulls(b.header_counts, b.header_keys, b.header_values) > 0
           and not msgtx.headers_fit(b.header_counts, b.header_keys, b.header_values) then
            raise exception using errcode = 'MX042', message = format(
                'the batch for partition %s has more headers than it counts, or fewer, or one without a key',
                    b.partition_id),
                detail = jsonb_build_object('name', 'batches', 'reason', 'headers', 'partition_id', b.partition_id);
        end if;
        before := b.partition_id;
        ignored := msgtx.lock_partition(b.partition_id);
    end loop;
    return true;
end $$;
