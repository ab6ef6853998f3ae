-- View partitions: log start, last stable offset, log end, records' bytes and rows of each partition. Of the topics on
-- which the caller has any right.
-- right: any
create view msgtx.partitions with (security_barrier) as
select t.name as topic, p.partition_index as partition, f.log_start_offset, f.last_stable_offset, f.log_end_offset,
       coalesce(s.bytes, 0) as bytes, coalesce(s.batches, 0) as batches, p.partition_id
from msgtx.partition p
join msgtx.topic t on t.topic_id = p.topic_id
cross join lateral (
    select f.log_start_offset, f.last_stable_offset, f.log_end_offset
    from msgtx.fetch_batches(array[p.partition_id], array[0::bigint], array[null::text], 'read_committed', 0, 0) f) f
left join lateral (
    select sum(r.byte_size)::bigint as bytes, count(*) as batches from msgtx.record_batch r
    where r.partition_id = p.partition_id) s on true
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{produce,consume,observe}'))::int[]), true);
