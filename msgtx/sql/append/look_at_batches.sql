-- look_at_batches(batches) → for each batch, in its order, the answer of check_batch and the state of its transaction,
-- all from one statement. The caller holds the locks. Plain SQL without settings, so that it becomes part of the
-- calling statement.
create function msgtx.look_at_batches(batches msgtx.batch[])
returns table (
    ordinal bigint, partition_id int, producer_id bigint, producer_epoch int, transaction_number bigint, record_count int,
    status text, outcome text, decided_by text, current_epoch int,
    verdict text, base_offset bigint, appended_at timestamptz, first_here boolean, log_append_time boolean,
    next_sequence bigint, epoch_here int, place text, max_message_bytes int)
language sql stable as $$
    select b.ordinal, b.partition_id, b.producer_id, b.producer_epoch, b.transaction_number, cardinality(b."values"),
           s.status, s.outcome, s.decided_by, s.current_epoch,
           c.verdict, c.base_offset, c.appended_at, c.first_here, c.log_append_time,
           c.next_sequence, c.epoch_here, c.place, c.max_message_bytes
    from unnest(batches) with ordinality
        b(partition_id, producer_id, producer_epoch, transaction_number, base_sequence, max_timestamp, keys, "values",
          timestamps, header_counts, header_keys, header_values, ordinal)
    cross join lateral msgtx.transaction_state(b.producer_id, b.producer_epoch, b.transaction_number) s
    cross join lateral msgtx.check_batch(
        b.partition_id, b.producer_id, b.producer_epoch, b.transaction_number, b.base_sequence, b.keys, b."values",
        msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values), s.status) c
$$;
