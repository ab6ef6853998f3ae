-- View transaction_markers: how transactions ended, partition by partition, from the first to the last offset of each.
-- Written in phase two, so a decided transaction may be without for about a second. Of the topics that the caller may
-- consume or administer.
-- right: consume, observe
create view msgtx.transaction_markers with (security_barrier) as
select t.name as topic, p.partition_index as partition, m.producer_id, m.producer_epoch, m.transaction_number, m.outcome,
       m.first_offset, m.last_offset, m.coordinator_epoch, m.partition_id
from msgtx.transaction_marker m
join msgtx.partition p on p.partition_id = m.partition_id
join msgtx.topic t on t.topic_id = p.topic_id
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{consume,observe}'))::int[]), true);
