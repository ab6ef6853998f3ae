-- session_of(member, moment) → a member's group, and whether its session is over; no row: there is no such member. Reads
-- group_member, group_heartbeat.
create function msgtx.session_of(in_member_number bigint, moment timestamptz) returns table (group_id int, is_over boolean)
language sql stable as $$
    select m.group_id, msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment)
    from msgtx.group_member m
    cross join lateral msgtx.newest_heartbeat(in_member_number) newest
    where m.member_number = in_member_number limit 1
$$;
