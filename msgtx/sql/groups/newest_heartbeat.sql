-- newest_heartbeat(member) → when a member was last heard of: its heartbeat with the highest number counts. Reads
-- group_heartbeat.
create function msgtx.newest_heartbeat(in_member_number bigint) returns table (heartbeat_at timestamptz)
language sql stable as $$
    select h.heartbeat_at from msgtx.group_heartbeat h
    where h.member_number = in_member_number order by h.heartbeat_number desc limit 1
$$;
