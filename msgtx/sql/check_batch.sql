-- check_batch(b, state) → whether the batch may be stored, and where. Kafka's checks in the order of architecture 5; the
-- caller holds the locks on producer and partition and has read the transaction's state behind them.
--   error, detail     the refusal, null if the batch is stored or is a duplicate
--   base_offset       the offset of its first record: the original one of a duplicate, −1 if the log has lost that row
--   appended_at       the time of the row, never before the row in front of it
--   first_here        the transaction has no row on this partition yet
-- Reads partition, topic, record_batch, producer_state.
create function msgtx.check_batch(
    b msgtx.batch, state msgtx.transaction_status,
    out error text, out detail text, out base_offset bigint, out appended_at timestamptz,
    out duplicate boolean, out first_here boolean, out log_append_time boolean
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    here record;
    stored record;
    last_sequence_here bigint;
    batch_last_sequence bigint := b.base_sequence + cardinality(b."values") - 1;
    epoch_here int;
begin
    duplicate := false;
    select p.log_start_offset, t.max_message_bytes, t.cleanup_policy, t.timestamp_type, t.name, p.partition_index,
           tail.last_offset, tail.appended_at,
           newest.producer_epoch, newest.last_sequence, newest.transaction_number
    into here
    from msgtx.partition p
    join msgtx.topic t on t.topic_id = p.topic_id
    left join lateral (
        select r.last_offset, r.appended_at from msgtx.record_batch r
        where r.partition_id = p.partition_id order by r.base_offset desc limit 1) tail on true
    left join lateral (
        select r.producer_epoch, r.last_sequence, r.transaction_number from msgtx.record_batch r
        where r.partition_id = p.partition_id and r.producer_id = b.producer_id
        order by r.producer_epoch desc, r.base_sequence desc limit 1) newest on true
    where p.partition_id = b.partition_id;
    if here.name is null then
        error := 'UnknownTopicOrPartition';
        detail := format('partition %s does not exist (any more)', b.partition_id);
        return;
    end if;
    log_append_time := here.timestamp_type = 'LogAppendTime';

    if b.producer_id is not null then
        if state.status in ('fenced', 'unknown') then
            select r.error, r.detail into error, detail
            from msgtx.refusal(state, b.producer_id, b.producer_epoch, b.transaction_number) r;
            return;
        end if;
        epoch_here := here.producer_epoch;
        last_sequence_here := here.last_sequence;
        if epoch_here is null then
            select s.producer_epoch, s.last_sequence into epoch_here, last_sequence_here
            from msgtx.producer_state s where s.partition_id = b.partition_id and s.producer_id = b.producer_id;
        end if;
        if epoch_here = b.producer_epoch and b.base_sequence <= last_sequence_here then
            select r.base_offset, r.appended_at into stored from msgtx.record_batch r
            where r.partition_id = b.partition_id and r.producer_id = b.producer_id
              and r.producer_epoch = b.producer_epoch and r.base_sequence = b.base_sequence
              and r.last_sequence = batch_last_sequence
              and r.transaction_number is not distinct from b.transaction_number;
            if found then
                base_offset := stored.base_offset;
                appended_at := stored.appended_at;
                duplicate := true;
                return;
            end if;
        end if;
        if state.status not in ('open', 'new', 'idle') then
            select r.error, r.detail into error, detail
            from msgtx.refusal(state, b.producer_id, b.producer_epoch, b.transaction_number) r;
            return;
        end if;
        if epoch_here > b.producer_epoch then
            error := 'InvalidProducerEpoch';
            detail := format('%s-%s holds epoch %s of producer %s; epoch %s is older',
                             here.name, here.partition_index, epoch_here, b.producer_id, b.producer_epoch);
            return;
        end if;
        if epoch_here < b.producer_epoch or epoch_here is null then
            last_sequence_here := -1;
        end if;
        if b.transaction_number is null and b.base_sequence >= 0 and batch_last_sequence <= last_sequence_here
            and not exists (
                select from msgtx.record_batch r
                where r.partition_id = b.partition_id and r.producer_id = b.producer_id
                  and r.producer_epoch = b.producer_epoch and r.base_sequence <= batch_last_sequence) then
            base_offset := -1;
            duplicate := true;
            return;
        end if;
        if b.base_sequence <> last_sequence_here + 1 or b.base_sequence is null then
            error := 'OutOfOrderSequence';
            detail := format('%s-%s: producer %s epoch %s sent sequence %s to %s, the next one is %s',
                             here.name, here.partition_index, b.producer_id, b.producer_epoch,
                             b.base_sequence, batch_last_sequence, last_sequence_here + 1);
            return;
        end if;
        first_here := b.transaction_number is not null
            and (here.producer_epoch is distinct from b.producer_epoch
                 or here.transaction_number is distinct from b.transaction_number);
    end if;

    -- The sum bounds each record, so that the records of an ordinary batch need not be looked at one by one.
    if pg_column_size(b."values") + coalesce(pg_column_size(b.keys), 0) + coalesce(pg_column_size(b.header_values), 0)
       + coalesce(pg_column_size(b.header_keys), 0) > here.max_message_bytes then
        select r.record_bytes into stored from msgtx.record_sizes(b) r
        order by r.record_bytes desc limit 1;
        if stored.record_bytes > here.max_message_bytes then
            error := 'RecordTooLarge';
            detail := format('%s-%s takes records of at most %s bytes (max_message_bytes); one has %s',
                             here.name, here.partition_index, here.max_message_bytes, stored.record_bytes);
            return;
        end if;
    end if;
    if here.cleanup_policy like 'compact%' and (b.keys is null or array_position(b.keys, null) is not null) then
        error := 'InvalidRecord';
        detail := format('%s-%s is compacted: every record needs a key', here.name, here.partition_index);
        return;
    end if;
    base_offset := greatest(here.last_offset + 1, here.log_start_offset);
    appended_at := greatest(msgtx.clock(), here.appended_at);
end $$;
