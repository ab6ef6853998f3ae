-- View record_batches: the rows of logs, also aborted and open ones, without the arrays of their records. A row of which
-- compaction has left nothing is there with record_count 0. Of the topics that the caller may consume.
-- right: consume
create view msgtx.record_batches with (security_barrier) as
select t.name as topic, p.partition_index as partition, r.base_offset, r.last_offset, r.record_count, r.byte_size,
       r.max_timestamp, r.appended_at, r.compacted_at, r.producer_id, r.producer_epoch, r.transaction_number,
       r.base_sequence, r.last_sequence, r.partition_id
from msgtx.record_batch r
join msgtx.partition p on p.partition_id = r.partition_id
join msgtx.topic t on t.topic_id = p.topic_id
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{consume}'))::int[]), true)
  and r.last_offset >= p.log_start_offset;
