-- View share_groups: each share group with its settings and its number of members, with those whose session is over until
-- they are removed. dead_letter_topic: whether it exists or not. A role without the right to consume or observe every
-- topic sees a group with a partition of one of its topics, if it may use the group or observe the topic.
-- right: consume, observe
create view msgtx.share_groups with (security_barrier) as
select c.name,
       -- make generate: settings.shown share_group
       s.auto_offset_reset, s.isolation, s.record_lock_duration_ms, s.delivery_count_limit, s.max_record_locks,
       s.ordering, s.release_backoff_ms, s.release_backoff_max_ms,
       -- end
       coalesce(s.dead_letter_topic, c.name || '-dead-letters') as dead_letter_topic, n.members, c.created_at
from msgtx.share_group s
join msgtx.consumer_group c on c.group_id = s.group_id
cross join lateral (select count(*)::int as members from msgtx.group_member m where m.group_id = s.group_id) n
where (select msgtx.topics_of_caller('{observe}')) is null
   or (((select msgtx.may_use('group', null)) or msgtx.may_use('group', c.name))
       and ((select msgtx.topics_of_caller('{consume,observe}')) is null
            or exists (
                select from msgtx.share_state v join msgtx.partition p on p.partition_id = v.partition_id
                where v.group_id = s.group_id
                  and p.topic_id = any((select msgtx.topics_of_caller('{consume,observe}'))::int[]))))
   or exists (
       select from msgtx.share_state v join msgtx.partition p on p.partition_id = v.partition_id
       where v.group_id = s.group_id and p.topic_id = any((select msgtx.topics_of_caller('{observe}'))::int[]));
