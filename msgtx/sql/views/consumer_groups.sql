-- View consumer_groups: each group (but share groups) with its generation, the strategy of its last assignment and its
-- number of members, with those whose session is over until they are removed. A role without the right to consume or
-- observe every topic sees a group with an offset or a partition of one of its topics, if it may use the group or
-- observe the topic.
-- right: consume, observe
create view msgtx.consumer_groups with (security_barrier) as
select g.name, g.generation, g.strategy, n.members, g.created_at
from msgtx.consumer_group g
cross join lateral (select count(*)::int as members from msgtx.group_member m where m.group_id = g.group_id) n
where not exists (select from msgtx.share_group s where s.group_id = g.group_id) and (
   (select msgtx.topics_of_caller('{observe}')) is null
   or (((select msgtx.may_use('group', null)) or msgtx.may_use('group', g.name))
       and ((select msgtx.topics_of_caller('{consume,observe}')) is null
            or exists (
                select from msgtx.partition p
                where p.topic_id = any((select msgtx.topics_of_caller('{consume,observe}'))::int[])
                  and (exists (select from msgtx.group_offset o where o.group_id = g.group_id
                      and o.partition_id = p.partition_id)
                       or exists (
                           select from msgtx.group_assignment a
                           where a.group_id = g.group_id and a.partition_id = p.partition_id)))))
   or exists (
       select from msgtx.partition p
       where p.topic_id = any((select msgtx.topics_of_caller('{observe}'))::int[])
         and (exists (select from msgtx.group_offset o where o.group_id = g.group_id and o.partition_id = p.partition_id)
              or exists (
                  select from msgtx.group_assignment a where a.group_id = g.group_id and a.partition_id = p.partition_id))));
