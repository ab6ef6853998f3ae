-- next_key(kind, after) → the next key behind this one that has rows, or of which a sweep has noted something; no row: there
-- is none. A key that is noted is not looked for in the table, whose first rows may be removed ones by the thousand
-- (swept_below).
--   kind   call, heartbeat: the key is a member; floor: a partition
-- Reads swept and, of a kind that is a constant of the calling statement, only the table of that: share_call,
-- group_heartbeat, partition_floor.
create function msgtx.next_key(kind text, after bigint) returns table (key_1 bigint) language sql stable as $$
    select coalesce(fresh.key_1, noted.key_1)
    from (select next_key.after as place offset 0) a
    left join lateral (
        select s.key_1 from msgtx.swept s
        where s.kind = next_key.kind and s.key_1 > a.place order by s.key_1, s.key_2, s.below limit 1) noted on true
    left join lateral (
        (select r.member_number as key_1 from msgtx.share_call r
         where next_key.kind = 'call' and r.member_number > a.place
           and r.member_number < coalesce(noted.key_1, 9223372036854775807)
         order by r.member_number, r.call_number limit 1)
        union all
        (select r.member_number from msgtx.group_heartbeat r
         where next_key.kind = 'heartbeat' and r.member_number > a.place
           and r.member_number < coalesce(noted.key_1, 9223372036854775807)
         order by r.member_number, r.heartbeat_number limit 1)
        union all
        (select r.partition_id::bigint from msgtx.partition_floor r
         where next_key.kind = 'floor' and r.partition_id > a.place
           and r.partition_id < coalesce(noted.key_1, 9223372036854775807)
         order by r.partition_id, r.stable_floor limit 1)) fresh on true
    where coalesce(fresh.key_1, noted.key_1) is not null
$$;
