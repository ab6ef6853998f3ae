-- refuse_compacted_letters(topic) raises (MX040) if a topic that is to be compacted takes the dead letters of a share
-- group: it would keep one for each key. After the lock of the topic's row: see why_no_dead_letters. Reads share_group,
-- consumer_group.
create function msgtx.refuse_compacted_letters(topic_name text) returns boolean language plpgsql volatile as $$
declare
    group_name constant text := (
        select c.name from msgtx.share_group s join msgtx.consumer_group c on c.group_id = s.group_id
        where coalesce(s.dead_letter_topic, c.name || '-dead-letters') = topic_name order by c.name limit 1);
begin
    if group_name is not null then
        raise exception using errcode = 'MX040', message = format(
            'topic %s takes the dead letters of share group %s, and compaction would keep one for each key: give the group'
            ' another dead_letter_topic first', topic_name, group_name),
            detail = jsonb_build_object('topic', topic_name, 'group', group_name, 'name', 'cleanup_policy');
    end if;
    return true;
end $$;
