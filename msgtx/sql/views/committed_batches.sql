-- View committed_batches: the rows of logs committed in this snapshot, also behind open transactions, with the arrays of
-- their records: for readers like Spark, which divide whole columns themselves. A query with a partition and bounds of
-- base_offset reads these rows only, and only the arrays that it names. Element n (from 0) is the record at
--   offset    base_offset + offset_deltas[n], or + n without deltas; it counts from log_start_offset on
--   time      timestamps[n], else max_timestamp; in milliseconds
--   headers   header_counts[n] elements of header_keys and header_values, from header_starts[n] on
-- Of the topics that the caller may consume. A row is committed by the rule of fetch_batches. In order: compaction
-- moves rows, and a bitmap scan finds them in the order of their pages. Names are laterals, so that the index gives the
-- order.
-- right: consume
create view msgtx.committed_batches with (security_barrier) as
select t.name as topic, p.partition_index as partition, t.timestamp_type, p.log_start_offset,
       r.partition_id, r.base_offset, r.last_offset, r.record_count, r.offset_deltas, r.max_timestamp, r.timestamps,
       r.keys, r."values", r.header_counts,
       array(select sum(c.header_count) over (order by c.ordinal) - c.header_count
             from unnest(r.header_counts) with ordinality c(header_count, ordinal)
                 order by c.ordinal)::int[] as header_starts,
       r.header_keys, r.header_values, r.byte_size
from msgtx.record_batch r
cross join lateral (
    select p.partition_index, p.log_start_offset, p.topic_id from msgtx.partition p
    where p.partition_id = r.partition_id limit 1) p
cross join lateral (
    select t.name, t.timestamp_type from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
left join lateral (
    select f.stable_floor from msgtx.partition_floor f
    where f.partition_id = r.partition_id order by f.stable_floor desc limit 1) floor on true
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{consume}'))::int[]), true)
  and r.record_count > 0
  and (r.transaction_number is null
       or case when r.base_offset < floor.stable_floor
           then (select true from msgtx.transaction_marker m
                 where m.partition_id = r.partition_id and m.producer_id = r.producer_id
                   and m.producer_epoch = r.producer_epoch and m.transaction_number = r.transaction_number
                   and m.outcome = 'ABORT') is null
           else (select true from msgtx.transaction_decision d
                 where d.producer_id = r.producer_id and d.producer_epoch = r.producer_epoch
                   and d.transaction_number = r.transaction_number and d.outcome = 'COMMIT') is not null end)
order by r.partition_id, r.base_offset;
