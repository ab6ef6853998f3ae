-- dead_letter_topic_of(group) → the name of a share group's topic of dead letters, whether it exists or not.
-- Reads share_group.
create function msgtx.dead_letter_topic_of(group_name text) returns text language sql stable as $$
    select coalesce((
        select s.dead_letter_topic from msgtx.consumer_group c
        cross join lateral (select s.dead_letter_topic from msgtx.share_group s where s.group_id = c.group_id limit 1) s
        where c.name = group_name), group_name || '-dead-letters')
$$;
