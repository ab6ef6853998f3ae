-- check_batch(batch, state) → whether a batch may be stored, and where: Kafka's checks, in order (internals:
-- append#the-order-of-the-checks). The caller holds the locks on producer and partition.
--   verdict       'store', 'duplicate', 'state' (the transaction's state refuses it: function refusal says how), 'large'
--                 (look at the single records), or the name of the error
--   base_offset   the offset of its first record: the original one of a duplicate, −1 if the log has lost that row
--   appended_at   the time of the row, never before the row in front of it
--   first_here    the transaction has no row on this partition yet
--   next_sequence the expected sequence, for the error's text
-- Plain SQL without settings, so that it becomes part of the statement that calls it.
-- Reads partition, topic, record_batch, producer_state.
create function msgtx.check_batch(
    in_partition_id int, in_producer_id bigint, in_epoch int, in_number bigint, in_base_sequence bigint,
    in_keys bytea[], in_values bytea[], in_bytes int, in_status text)
returns table (
    verdict text, base_offset bigint, appended_at timestamptz, first_here boolean, log_append_time boolean,
    next_sequence bigint, epoch_here int, place text, max_message_bytes int)
language sql stable as $$
    select case
               when p.topic_id is null then 'UnknownTopicOrPartition'
               when in_producer_id is null then
                   case when t.cleanup_policy like 'compact%' and (in_keys is null or array_position(in_keys, null) > 0)
                       then 'InvalidRecord' when in_bytes > t.max_message_bytes then 'large' else 'store' end
               when in_status in ('fenced', 'unknown') then 'state'
               when earlier.exact then 'duplicate'
               when in_status not in ('open', 'new', 'idle') then 'state'
               when known.epoch > in_epoch then 'InvalidProducerEpoch'
               when in_number is null and in_base_sequence >= 0 and known.epoch = in_epoch
                   and in_base_sequence + cardinality(in_values) - 1 <= known.last_sequence and earlier.base_offset is null
                   then 'duplicate'
               when in_base_sequence is distinct from
                   1 + case when known.epoch = in_epoch then known.last_sequence else -1 end then 'OutOfOrderSequence'
               when t.cleanup_policy like 'compact%' and (in_keys is null or array_position(in_keys, null) > 0)
                   then 'InvalidRecord'
               when in_bytes > t.max_message_bytes then 'large'
               else 'store' end,
           case when in_base_sequence <= known.last_sequence and known.epoch = in_epoch
               then coalesce(earlier.base_offset, -1)
               else greatest(tail.last_offset + 1, p.log_start_offset) end,
           case when in_base_sequence <= known.last_sequence and known.epoch = in_epoch then earlier.appended_at
               else greatest(msgtx.clock(), tail.appended_at) end,
           in_number is not null and (newest.producer_epoch is distinct from in_epoch
                                      or newest.transaction_number is distinct from in_number),
           t.timestamp_type = 'LogAppendTime',
           1 + case when known.epoch = in_epoch then known.last_sequence else -1 end,
           known.epoch, t.name || '-' || p.partition_index, t.max_message_bytes
    from (select in_partition_id as partition_id offset 0) asked
    left join lateral (select p.* from msgtx.partition p where p.partition_id = asked.partition_id limit 1) p on true
    left join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t on true
    left join lateral (
        select r.last_offset, r.appended_at from msgtx.record_batch r
        where r.partition_id = asked.partition_id order by r.base_offset desc limit 1) tail on true
    left join lateral (
        select r.producer_epoch, r.last_sequence, r.transaction_number from msgtx.record_batch r
        where r.partition_id = asked.partition_id and r.producer_id = in_producer_id
        order by r.producer_epoch desc, r.base_sequence desc limit 1) newest on in_producer_id is not null
    left join lateral (
        select k.producer_epoch, k.last_sequence from msgtx.producer_state k
        where k.partition_id = asked.partition_id and k.producer_id = in_producer_id limit 1)
        kept on newest.last_sequence is null
    cross join lateral (
        select coalesce(newest.producer_epoch, kept.producer_epoch) as epoch,
               coalesce(newest.last_sequence, kept.last_sequence) as last_sequence) known
    left join lateral (
        select r.base_offset, r.appended_at,
               r.base_sequence = in_base_sequence and r.last_sequence = in_base_sequence + cardinality(in_values) - 1
               and r.transaction_number is not distinct from in_number as exact
        from msgtx.record_batch r
        where r.partition_id = asked.partition_id and r.producer_id = in_producer_id and r.producer_epoch = in_epoch
          and r.base_sequence <= in_base_sequence + cardinality(in_values) - 1
        order by r.base_sequence desc limit 1) earlier
        on known.epoch = in_epoch and in_base_sequence <= known.last_sequence
$$;
