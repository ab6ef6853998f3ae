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
    select s.* from msgtx.rows_to_store(batches, base_offsets, times, log_append_time) s;
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
