-- sql_member(group, topic) → the number of the member in whose name all callers of receive acquire records of a topic for a
-- share group; it joins if need be, and makes the group. A call that comes after a quarter of its session is its heartbeat;
-- so its session outlasts the locks of the records. Raises why it cannot join.
-- Locks the group (exclusive), if it joins or comes back. Reads consumer_group, share_group. Writes group_heartbeat,
-- group_member, and what join_share_group does.
-- plan: look-ups
create function msgtx.sql_member(group_name text, topic text) returns bigint language plpgsql volatile as $$
declare
    moment constant timestamptz := msgtx.clock();
    sql_id constant text := 'sql:' || topic;
    session_ms constant int := greatest(msgtx.setting_value('group_min_session_timeout_ms'), least(
        msgtx.setting_value('group_max_session_timeout_ms'), 2 * greatest(30000, (
            select s.record_lock_duration_ms::bigint from msgtx.consumer_group c
            join msgtx.share_group s on s.group_id = c.group_id where c.name = group_name))));
    is_locked boolean := false;
    member record;
    joined record;
begin
    loop
        select m.member_number, m.session_timeout_ms, newest.heartbeat_number, newest.heartbeat_at into member
        from msgtx.consumer_group c
        cross join lateral (
            select m.member_number, m.session_timeout_ms from msgtx.group_member m
            where m.group_id = c.group_id and m.member_id = sql_id limit 1) m
        cross join lateral (
            select h.heartbeat_number, h.heartbeat_at from msgtx.group_heartbeat h
            where h.member_number = m.member_number order by h.heartbeat_number desc limit 1) newest
        where c.name = group_name;
        exit when is_locked or member.session_timeout_ms = session_ms
            and not msgtx.is_session_over(member.heartbeat_at, session_ms, moment);
        perform msgtx.lock_group(group_name);
        is_locked := true;
    end loop;
    if member.member_number is null then
        select j.* into joined from msgtx.join_share_group(group_name, sql_id, null, null, session_ms, array[topic]) j;
        if joined.error is not null then
            raise exception using errcode = 'MX000', column = split_part(joined.error, ':', 1), message = joined.detail,
                detail = jsonb_build_object('group', group_name);
        end if;
        return joined.member_number;
    end if;
    if is_locked then
        update msgtx.group_member m set session_timeout_ms = session_ms where m.member_number = member.member_number;
    end if;
    if msgtx.is_session_over(member.heartbeat_at, session_ms / 4, moment) then
        insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
        values (member.member_number, member.heartbeat_number + 1, moment) on conflict do nothing;
    end if;
    return member.member_number;
end $$;
