-- next_key(kind, after…) → the next key behind this one with rows, or with a sweep's note; no row: there is none. A noted
-- key is not looked for in the table: its first rows may be removed ones by the thousand (swept_below).
--   kind   call, heartbeat: the key is a member, and 0; floor: a partition, and 0; offset, state: group and partition
-- Reads swept and, of a kind, only the table of that: share_call, group_heartbeat, partition_floor, group_offset,
-- share_state.
create function msgtx.next_key(kind text, after_1 bigint, after_2 bigint) returns table (key_1 bigint, key_2 bigint)
language sql stable as $$
    select coalesce(fresh.key_1, noted.key_1), coalesce(fresh.key_2, noted.key_2)
    from (select next_key.after_1 as place_1, next_key.after_2 as place_2 offset 0) a
    left join lateral (
        select s.key_1, s.key_2 from msgtx.swept s
        where s.kind = next_key.kind and (s.key_1, s.key_2) > (a.place_1, a.place_2)
        order by s.key_1, s.key_2, s.below limit 1) noted on true
    left join lateral (select * from (
        (select r.member_number as key_1, 0::bigint as key_2 from msgtx.share_call r
         where next_key.kind = 'call'
           and r.member_number > a.place_1 and r.member_number < coalesce(noted.key_1, 9223372036854775807)
         order by r.member_number, r.call_number limit 1)
        union all
        (select r.member_number as key_1, 0::bigint as key_2 from msgtx.group_heartbeat r
         where next_key.kind = 'heartbeat'
           and r.member_number > a.place_1 and r.member_number < coalesce(noted.key_1, 9223372036854775807)
         order by r.member_number, r.heartbeat_number limit 1)
        union all
        (select r.partition_id as key_1, 0::bigint as key_2 from msgtx.partition_floor r
         where next_key.kind = 'floor'
           and r.partition_id > a.place_1 and r.partition_id < coalesce(noted.key_1, 9223372036854775807)
         order by r.partition_id, r.stable_floor limit 1)
        union all  -- of pairs in three ranges: a comparison of rows would not end the scan
        (select r.group_id, r.partition_id from msgtx.group_offset r
         where next_key.kind = 'offset' and r.group_id = a.place_1 and r.partition_id > a.place_2
           and r.partition_id < case when noted.key_1 = a.place_1 then noted.key_2 else 9223372036854775807 end
         order by r.group_id, r.partition_id, r.commit_sequence limit 1)
        union all
        (select r.group_id, r.partition_id from msgtx.group_offset r
         where next_key.kind = 'offset' and a.place_1 + 1 < coalesce(noted.key_1, 9223372036854775807)
           and r.group_id > a.place_1 and r.group_id < coalesce(noted.key_1, 9223372036854775807)
         order by r.group_id, r.partition_id, r.commit_sequence limit 1)
        union all
        (select r.group_id, r.partition_id from msgtx.group_offset r
         where next_key.kind = 'offset' and noted.key_1 > a.place_1
           and r.group_id = noted.key_1 and r.partition_id < noted.key_2
         order by r.group_id, r.partition_id, r.commit_sequence limit 1)
        union all
        (select r.group_id, r.partition_id from msgtx.share_state r
         where next_key.kind = 'state' and r.group_id = a.place_1 and r.partition_id > a.place_2
           and r.partition_id < case when noted.key_1 = a.place_1 then noted.key_2 else 9223372036854775807 end
         order by r.group_id, r.partition_id, r.version limit 1)
        union all
        (select r.group_id, r.partition_id from msgtx.share_state r
         where next_key.kind = 'state' and a.place_1 + 1 < coalesce(noted.key_1, 9223372036854775807)
           and r.group_id > a.place_1 and r.group_id < coalesce(noted.key_1, 9223372036854775807)
         order by r.group_id, r.partition_id, r.version limit 1)
        union all
        (select r.group_id, r.partition_id from msgtx.share_state r
         where next_key.kind = 'state' and noted.key_1 > a.place_1
           and r.group_id = noted.key_1 and r.partition_id < noted.key_2
         order by r.group_id, r.partition_id, r.version limit 1)) f limit 1) fresh on true
    where coalesce(fresh.key_1, noted.key_1) is not null
$$;
