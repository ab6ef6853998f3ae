-- View group_offsets: the offsets that groups have committed, a row per commit; sweeps remove superseded ones.
--   counts    decided: committed plainly or with a committed transaction    pending    waits for the decision of a sealed
--             one
--   newest    of a group and partition the last one that counts: there the group goes on
-- On topics that the caller may observe: all groups. On topics that it may only consume: the groups that it may use.
-- right: consume, observe
create view msgtx.group_offsets with (security_barrier) as
select g.name as group_name, t.name as topic, p.partition_index as partition, o.commit_sequence, o.committed_offset,
       o.metadata, o.committed_at, c.counts,
       not c.counts and (
           select true from msgtx.transaction_decision d
           where d.producer_id = o.producer_id and d.producer_epoch = o.producer_epoch
             and d.transaction_number = o.transaction_number) is null as pending,
       c.counts and not exists (
           select from msgtx.group_offset later
           where later.group_id = o.group_id and later.partition_id = o.partition_id
             and later.commit_sequence > o.commit_sequence
             and msgtx.offset_counts(later.producer_id, later.producer_epoch, later.transaction_number)) as newest,
       o.member_id, o.generation, o.producer_id, o.producer_epoch, o.transaction_number, o.partition_id
from msgtx.group_offset o
join msgtx.consumer_group g on g.group_id = o.group_id
join msgtx.partition p on p.partition_id = o.partition_id
join msgtx.topic t on t.topic_id = p.topic_id
cross join lateral (select msgtx.offset_counts(o.producer_id, o.producer_epoch, o.transaction_number) as counts offset 0) c
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{consume,observe}'))::int[]), true)
  and ((select msgtx.may_use('group', null)) or msgtx.may_use('group', g.name)
       or coalesce(p.topic_id = any((select msgtx.topics_of_caller('{observe}'))::int[]), true));
