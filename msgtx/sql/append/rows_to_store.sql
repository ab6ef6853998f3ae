-- rows_to_store(batches, base_offsets, times, …) → the rows of record_batch for checked batches; a batch without an offset
-- is left out. Plain SQL without settings, so that it becomes part of the statement that inserts them.
create function msgtx.rows_to_store(
    batches msgtx.batch[], base_offsets bigint[], times timestamptz[], log_append_time boolean[])
returns table (
    partition_id int, base_offset bigint, last_offset bigint, producer_id bigint, producer_epoch int,
    transaction_number bigint, base_sequence bigint, last_sequence bigint, appended_at timestamptz, max_timestamp bigint,
    record_count int, byte_size bigint, keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[])
language sql stable as $$
    select b.partition_id, base_offsets[b.ordinal], base_offsets[b.ordinal] + cardinality(b."values") - 1,
           b.producer_id, b.producer_epoch, b.transaction_number,
           b.base_sequence, b.base_sequence + cardinality(b."values") - 1, times[b.ordinal],
           case when log_append_time[b.ordinal] then floor(extract(epoch from times[b.ordinal]) * 1000)::bigint
               else b.max_timestamp end,
           cardinality(b."values"), msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values)::bigint,
           b.keys, b."values", case when not log_append_time[b.ordinal] then b.timestamps end,
           b.header_counts, b.header_keys, b.header_values
    from unnest(batches) with ordinality
        b(partition_id, producer_id, producer_epoch, transaction_number, base_sequence, max_timestamp, keys, "values",
          timestamps, header_counts, header_keys, header_values, ordinal)
    where base_offsets[b.ordinal] is not null
$$;
