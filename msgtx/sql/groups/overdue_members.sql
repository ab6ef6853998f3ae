-- overdue_members(group_id, moment) → the members of a group whose session is over: the newest heartbeat counts, by its
-- number. Plain SQL without settings: PostgreSQL makes it part of the calling statement. Reads group_member,
-- group_heartbeat.
create function msgtx.overdue_members(in_group_id int, moment timestamptz)
returns table (member_number bigint, member_id text, group_instance_id text) language sql stable as $$
    select m.member_number, m.member_id, m.group_instance_id
    from msgtx.group_member m
    cross join lateral msgtx.newest_heartbeat(m.member_number) newest
    where m.group_id = in_group_id and msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment)
$$;
