-- View share_partitions: how far share groups are on each partition of which they know something. Counts are of offsets. On
-- its topic of dead letters next_offset is how far a group's letters were sent back.
--   start_offset   below it all is done: the first one in flight or parked, else next_offset
--   next_offset    from here on nothing was delivered yet
-- On topics that the caller may observe: all groups. On topics that it may only consume: the groups that it may use.
-- right: consume, observe
create view msgtx.share_partitions with (security_barrier) as
select c.name as group_name, t.name as topic, p.partition_index as partition,
       coalesce(f.start_offset, greatest(newest.next_offset, p.log_start_offset)) as start_offset,
       greatest(newest.next_offset, p.log_start_offset) as next_offset, coalesce(f.available, 0) as available,
       coalesce(f.acquired, 0) as acquired, coalesce(f.pending, 0) as pending, coalesce(f.rejected, 0) as rejected,
       coalesce(f.delayed, 0) as delayed, coalesce(f.waiting, 0) as waiting, p.partition_id
from msgtx.share_group s
join msgtx.consumer_group c on c.group_id = s.group_id
cross join lateral (  -- as newest_share_states
    with recursive known(partition_id) as (
        (select v.partition_id from msgtx.share_state v where v.group_id = s.group_id
         order by v.partition_id desc, v.version desc limit 1)
        union all
        select next.partition_id from known k
        cross join lateral (
            select v.partition_id from msgtx.share_state v where v.group_id = s.group_id and v.partition_id < k.partition_id
            order by v.partition_id desc, v.version desc limit 1) next)
    select k.partition_id from known k) v
join msgtx.partition p on p.partition_id = v.partition_id
join msgtx.topic t on t.topic_id = p.topic_id
cross join lateral (
    select o.next_offset from msgtx.share_state o
    where o.group_id = s.group_id and o.partition_id = v.partition_id order by o.version desc limit 1) newest
left join (
    select u.group_name, u.partition_id, min(u.first_offset) as start_offset,
           sum(case u.state when 'available' then u.last_offset - u.first_offset + 1 end)::bigint as available,
           sum(case u.state when 'acquired' then u.last_offset - u.first_offset + 1 end)::bigint as acquired,
           sum(case u.state when 'pending' then u.last_offset - u.first_offset + 1 end)::bigint as pending,
           sum(case u.state when 'rejected' then u.last_offset - u.first_offset + 1 end)::bigint as rejected,
           sum(case u.state when 'delayed' then u.last_offset - u.first_offset + 1 end)::bigint as delayed,
           sum(case u.state when 'waiting' then u.last_offset - u.first_offset + 1 end)::bigint as waiting
    from msgtx.spans_of_share_groups() u group by u.group_name, u.partition_id
    ) f on f.group_name = c.name and f.partition_id = p.partition_id
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{consume,observe}'))::int[]), true)
  and ((select msgtx.may_use('group', null)) or msgtx.may_use('group', c.name)
       or coalesce(p.topic_id = any((select msgtx.topics_of_caller('{observe}'))::int[]), true));
