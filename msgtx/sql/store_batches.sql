-- store_batches(batches, offsets, times, …) inserts rows of record_batch, and the transaction's first offset on each
-- partition where first_here says so. Sequence, offset and rows move in one statement (P6). The caller has checked them.
-- Writes record_batch, transaction_partition.
create function msgtx.store_batches(
    batches msgtx.batch[], base_offsets bigint[], times timestamptz[], log_append_time boolean[], first_here boolean[]
) returns boolean language plpgsql volatile as $$
begin
    insert into msgtx.record_batch (
        partition_id, base_offset, last_offset, producer_id, producer_epoch, transaction_number,
        base_sequence, last_sequence, appended_at, max_timestamp, record_count, byte_size,
        keys, "values", timestamps, header_counts, header_keys, header_values)
    select b.partition_id, o.base_offset, o.base_offset + cardinality(b."values") - 1,
           b.producer_id, b.producer_epoch, b.transaction_number,
           b.base_sequence, b.base_sequence + cardinality(b."values") - 1, o.at,
           case when o.log_append_time then floor(extract(epoch from o.at) * 1000)::bigint else b.max_timestamp end,
           cardinality(b."values"), msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values),
           b.keys, b."values", case when not o.log_append_time then b.timestamps end,
           b.header_counts, b.header_keys, b.header_values
    from rows from (unnest(batches), unnest(base_offsets), unnest(times), unnest(log_append_time))
        b(partition_id, producer_id, producer_epoch, transaction_number, base_sequence, max_timestamp, keys, "values",
          timestamps, header_counts, header_keys, header_values, base_offset, at, log_append_time)
    cross join lateral (select b.base_offset, b.at, b.log_append_time) o
    where o.base_offset is not null;
    if true = any(first_here) then
        insert into msgtx.transaction_partition (producer_id, producer_epoch, transaction_number, partition_id, first_offset)
        select b.producer_id, b.producer_epoch, b.transaction_number, b.partition_id, base_offsets[b.ordinal]
        from unnest(batches) with ordinality
            b(partition_id, producer_id, producer_epoch, transaction_number, base_sequence, max_timestamp, keys, "values",
              timestamps, header_counts, header_keys, header_values, ordinal)
        where first_here[b.ordinal]
        on conflict do nothing;
    end if;
    return true;
end $$;
