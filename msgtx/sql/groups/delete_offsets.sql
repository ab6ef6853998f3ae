-- delete_offsets(group, partitions) removes a group's offsets there, pending ones included (P17); → the partitions that had
-- one. All or nothing; error and detail say why not:
--   GroupNotFound   there is none      GroupSubscribedToTopic   a living member owns one of the partitions      ConfigError
--                    it is a share group
-- Locks the group (exclusive). Reads consumer_group, share_group, group_assignment, group_member, group_heartbeat,
-- partition, topic. Deletes from group_offset. Flushed.
-- right: admin of all topics
-- null: removed
-- plan: look-ups
create function msgtx.delete_offsets(
    group_name text, partition_ids int[], out error text, out detail text, out removed int[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    found_group int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    select g.group_id into found_group from msgtx.consumer_group g where g.name = group_name;
    if not found then
        error := 'GroupNotFound';
        detail := format('there is no consumer group %s', group_name);
        return;
    end if;
    if exists (select from msgtx.share_group s where s.group_id = found_group) then
        error := 'ConfigError: share group';
        detail := format('%s is a share group, which has no committed offsets (client.admin.shares)', group_name);
        return;
    end if;
    select format('group %s: member %s owns %s-%s', group_name, m.described, t.name, p.partition_index) into detail
    from msgtx.group_assignment a
    join msgtx.living_members(found_group) m on m.member_number = a.owner
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = a.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where a.group_id = found_group and a.partition_id = any(partition_ids)
    order by a.partition_id limit 1;
    if found then
        error := 'GroupSubscribedToTopic';
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    with gone as (
        delete from msgtx.group_offset o
        where o.group_id = found_group and o.partition_id = any(partition_ids) returning o.partition_id)
    select coalesce(array_agg(distinct g.partition_id), '{}') into removed from gone g;
end $$;
