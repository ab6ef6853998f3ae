-- begins_now(topic_id, group_id, topic, group, auto_offset_reset) → whether a consumer group without an offset in a topic
-- begins at the ends of its partitions now (latest), or is about to; then there is nothing to take. With none it raises
-- NoOffset. A group that has an offset in one partition has begun: it reads the others from their beginning, also those that
-- are added later.
-- Tries the locks of the group on all partitions. Reads partition. Writes through insert_offsets. Flushed.
-- plan: look-ups
create function msgtx.begins_now(
    in_topic_id int, in_group_id int, topic text, group_name text, auto_offset_reset text
) returns boolean language plpgsql volatile as $$
declare
    partition_ids int[];
    place int;
begin
    partition_ids := array(
        select p.partition_id from msgtx.partition p where p.topic_id = in_topic_id order by p.partition_id);
    if msgtx.has_begun(in_group_id, partition_ids) then
        return false;
    end if;
    if auto_offset_reset = 'none' then
        raise exception using errcode = 'MX000', column = 'NoOffset', message = format(
            '%s: group %s has no committed offset, and auto_offset_reset is none: set it to earliest or latest', topic,
            group_name),
            detail = jsonb_build_object('topic', topic, 'group', group_name);
    end if;
    foreach place in array partition_ids loop
        if not msgtx.try_lock_group_partition(in_group_id, place) then
            return true;  -- another caller begins
        end if;
    end loop;
    if msgtx.has_begun(in_group_id, partition_ids) then
        return true;  -- another caller has begun, in front of these locks
    end if;
    perform msgtx.insert_offsets(
        array_fill(group_name, array[cardinality(partition_ids)]), array_agg(e.partition_id),
        array_agg(e.last_stable_offset), '{}', '{}', '{}', null, null, null)
    from msgtx.log_ends(partition_ids, 'read_committed') e;
    perform msgtx.flush_at_commit();
    return true;
end $$;
