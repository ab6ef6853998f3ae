-- next_heartbeats(after) → the next member behind this one that has rows in group_heartbeat, or of which a sweep has noted
-- something; no row: there is none. One that is noted is not looked for in group_heartbeat, whose first rows may be removed
-- ones by the thousand (swept_below). Reads group_heartbeat, swept.
create function msgtx.next_heartbeats(after bigint) returns table (key_1 bigint) language sql stable as $$
    select coalesce(fresh.key_1, noted.key_1)
    from (select next_heartbeats.after as place offset 0) a
    left join lateral (
        select s.key_1 from msgtx.swept s
        where s.kind = 'heartbeat' and s.key_1 > a.place order by s.key_1, s.key_2, s.below limit 1) noted on true
    left join lateral (
        select r.member_number::bigint as key_1 from msgtx.group_heartbeat r
        where r.member_number > a.place and r.member_number < coalesce(noted.key_1, 9223372036854775807)
        order by r.member_number, r.heartbeat_number limit 1) fresh on true
    where coalesce(fresh.key_1, noted.key_1) is not null
$$;
