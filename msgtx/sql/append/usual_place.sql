-- usual_place(partition, producer, epoch, base_sequence, bytes) → where a batch is stored if nothing about it is unusual: it
-- has the next sequence, and no record of it can be too large. Few nodes: each is set up anew in every SQL transaction.
-- check_batch judges all other cases, and alone words refusals. Producer null: one without a producer.
--   is_usual    not true: ask check_batch
--   needs_keys  its topic is compacted: the caller looks at the keys
-- The caller holds the locks on producer and partition, and has seen that the producer has this epoch.
-- Reads record_batch, producer_state, partition, topic.
create function msgtx.usual_place(
    in_partition_id int, in_producer_id bigint, in_epoch int, in_base_sequence bigint, in_bytes int,
    out is_usual boolean, out base_offset bigint, out appended_at timestamptz, out log_append_time boolean,
    out needs_keys boolean
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    tail record;
    known_epoch int;
    known_sequence bigint;
begin
    select p.log_start_offset, t.max_message_bytes, t.timestamp_type = 'LogAppendTime' as log_append_time,
           t.cleanup_policy <> 'delete' as needs_keys,
           r.last_offset, r.appended_at, r.producer_id, r.producer_epoch, r.last_sequence into tail
    from msgtx.partition p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    left join lateral (select r.* from msgtx.record_batch r
                       where r.partition_id = in_partition_id order by r.base_offset desc limit 1) r on true
    where p.partition_id = in_partition_id;
    known_epoch := tail.producer_epoch;
    known_sequence := tail.last_sequence;
    -- Retention may remove rows between two of these statements, so its notes are read after the rows that it removes.
    if tail.producer_id <> in_producer_id or tail.producer_id is null and in_producer_id is not null then
        select r.producer_epoch, r.last_sequence into known_epoch, known_sequence
        from msgtx.record_batch r where r.partition_id = in_partition_id and r.producer_id = in_producer_id
        order by r.producer_epoch desc, r.base_sequence desc limit 1;
        if known_epoch is null then
            select k.producer_epoch, k.last_sequence into known_epoch, known_sequence
            from msgtx.producer_state k where k.partition_id = in_partition_id and k.producer_id = in_producer_id;
        end if;
    end if;
    is_usual := in_bytes <= tail.max_message_bytes and (in_producer_id is null or in_base_sequence =
        case when known_epoch = in_epoch then known_sequence + 1 when known_epoch > in_epoch then null else 0 end);
    base_offset := greatest(tail.last_offset + 1, tail.log_start_offset);
    appended_at := greatest(msgtx.clock(), tail.appended_at);
    log_append_time := tail.log_append_time;
    needs_keys := tail.needs_keys;
end $$;
