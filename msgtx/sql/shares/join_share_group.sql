-- join_share_group(group, member, …) makes a client a member of a share group; the first one makes the group. error and detail say why
-- not. Asked again for the same member id, the answer is the same.
--   member_number  by which the group's tables know it; a number is never given out twice
--   in_topics      that it reads: with one that the group knows nothing of it begins here and now (share_start_offsets). Names of topics that
--                  do not exist, or that the caller may not consume, say nothing
-- Locks the group (exclusive). Reads topic, partition. Writes consumer_group, share_group, group_member, group_heartbeat (number 0),
-- share_state. Flushed.
create function msgtx.join_share_group(
    group_name text, in_member_id text, in_client_host text, in_client_process int, in_session_timeout_ms int, in_topics text[],
    out error text, out detail text, out group_id int, out member_number bigint
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off
set enable_bitmapscan = off set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    readable constant int[] := msgtx.topics_of_caller('{consume}');
    unknown int[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    detail := case
        when coalesce(group_name, '') = '' then 'a share group has a name'
        when group_name !~ '^[a-zA-Z0-9._-]{1,236}$' then format(
            'share group %s: its dead letters have a topic with its name; use 1 to 236 of a-z A-Z 0-9 . _ -', left(group_name, 50))
        when coalesce(in_member_id, '') = '' then format('share group %s: a member has an id', group_name)
        when greatest(octet_length(group_name), octet_length(in_member_id), octet_length(in_client_host)) > 1000 then format(
            'share group %s: its name, and id and host of a member have at most 1000 bytes each', left(group_name, 50)) end;
    if detail is not null then
        error := 'InvalidRequest';
        return;
    end if;
    if (in_session_timeout_ms between msgtx.setting_value('group_min_session_timeout_ms')
                                 and msgtx.setting_value('group_max_session_timeout_ms')) is not true then
        error := 'InvalidSessionTimeout';
        detail := format('share group %s: the session timeout of member %s is %s ms; group_min_session_timeout_ms is %s,'
                         ' group_max_session_timeout_ms is %s', group_name, in_member_id, in_session_timeout_ms,
                         msgtx.setting_value('group_min_session_timeout_ms'),
                         msgtx.setting_value('group_max_session_timeout_ms'));
        return;
    end if;
    ignored := msgtx.lock_group(group_name);
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_names('group', array[group_name]);
    end if;
    select g.group_id into group_id from msgtx.consumer_group g where g.name = group_name;
    if not found then
        insert into msgtx.consumer_group (name) values (group_name)
        returning msgtx.consumer_group.group_id into group_id;
        insert into msgtx.share_group (group_id) values (join_share_group.group_id);
    elsif not exists (select from msgtx.share_group s where s.group_id = join_share_group.group_id) then
        error := 'ConfigError';
        detail := format('%s is a consumer group: choose another name for the share group, or delete that group', group_name);
        return;
    end if;
    select m.member_number into member_number from msgtx.group_member m
    where m.group_id = join_share_group.group_id and m.member_id = in_member_id;
    if found then
        return;
    end if;
    if (select count(*) from msgtx.group_member m where m.group_id = join_share_group.group_id)
       >= msgtx.setting_value('group_max_members') then
        error := 'GroupMaxSizeReached';
        detail := format('share group %s has as many members as it may (group_max_members is %s)', group_name,
                         msgtx.setting_value('group_max_members'));
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    insert into msgtx.group_member (
        group_id, member_id, client_host, client_process, session_timeout_ms, topics, joined_at)
    values (group_id, in_member_id, in_client_host, in_client_process, in_session_timeout_ms, in_topics, msgtx.clock())
    returning msgtx.group_member.member_number into member_number;
    insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
    values (join_share_group.member_number, 0, msgtx.clock());
    -- No other member has the group begin with a topic meanwhile: it would have joined for it.
    unknown := array(
        select p.partition_id from msgtx.topic t
        join msgtx.partition p on p.topic_id = t.topic_id
        where t.name = any (in_topics) and (readable is null or t.topic_id = any (readable)) and not exists (
            select from msgtx.partition q
            cross join lateral (
                select from msgtx.share_state s
                where s.group_id = join_share_group.group_id and s.partition_id = q.partition_id limit 1) known
            where q.topic_id = t.topic_id));
    insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)
    select join_share_group.group_id, b.partition_id, 1, b.start_offset, '{}'
    from msgtx.share_group g
    cross join lateral msgtx.share_start_offsets(g, unknown, msgtx.clock()) b
    where g.group_id = join_share_group.group_id;
end $$;
