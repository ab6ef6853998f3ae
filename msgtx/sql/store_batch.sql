-- store_batch(b, base_offset, appended_at, first_here, log_append_time) inserts one row of record_batch, and the
-- transaction's first offset on the partition if this is its first row there. Sequence, offset and rows move in one
-- statement's transaction (P6).
-- Writes record_batch, transaction_partition.
create function msgtx.store_batch(
    b msgtx.batch, at_offset bigint, at_time timestamptz, first_here boolean, log_append_time boolean
) returns boolean language plpgsql volatile as $$
declare
    record_count int := cardinality(b."values");
begin
    insert into msgtx.record_batch (
        partition_id, base_offset, last_offset, producer_id, producer_epoch, transaction_number,
        base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size,
        keys, "values", timestamps, header_counts, header_keys, header_values)
    values (
        b.partition_id, at_offset, at_offset + record_count - 1, b.producer_id, b.producer_epoch, b.transaction_number,
        b.base_sequence, b.base_sequence + record_count - 1, at_time,
        case when log_append_time then floor(extract(epoch from at_time) * 1000)::bigint else b.max_timestamp end,
        record_count,
        pg_column_size(b."values") + coalesce(pg_column_size(b.keys), 0) + coalesce(pg_column_size(b.header_values), 0),
        b.keys, b."values", case when not log_append_time then b.timestamps end,
        b.header_counts, b.header_keys, b.header_values);
    if first_here then
        insert into msgtx.transaction_partition (producer_id, producer_epoch, transaction_number, partition_id, first_offset)
        values (b.producer_id, b.producer_epoch, b.transaction_number, b.partition_id, at_offset)
        on conflict do nothing;
    end if;
    return true;
end $$;
