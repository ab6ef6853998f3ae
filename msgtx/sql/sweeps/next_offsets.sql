-- next_offsets(after…) → the next group and partition behind these that have rows in group_offset, or of which a sweep has
-- noted something; no row: there are none. Noted ones are not looked for in group_offset, which may begin with thousands of
-- removed rows (swept_below).
-- Reads group_offset, swept.
create function msgtx.next_offsets(after_1 bigint, after_2 bigint) returns table (key_1 bigint, key_2 bigint)
    language sql stable as $$
    select coalesce(fresh.key_1, noted.key_1), coalesce(fresh.key_2, noted.key_2)
    from (select next_offsets.after_1 as place_1, next_offsets.after_2 as place_2 offset 0) a
    left join lateral (
        select s.key_1, s.key_2 from msgtx.swept s
        where s.kind = 'offset' and (s.key_1, s.key_2) > (a.place_1, a.place_2)
        order by s.key_1, s.key_2, s.below limit 1) noted on true
    left join lateral (  -- in three ranges: a comparison of rows would not end the scan
        select * from (
            (select r.group_id::bigint as key_1, r.partition_id::bigint as key_2 from msgtx.group_offset r
             where r.group_id = a.place_1 and r.partition_id > a.place_2
               and r.partition_id < case when noted.key_1 = a.place_1 then noted.key_2 else 9223372036854775807 end
             order by r.group_id, r.partition_id, r.commit_sequence limit 1)
            union all
            (select r.group_id, r.partition_id from msgtx.group_offset r
             where a.place_1 + 1 < coalesce(noted.key_1, 9223372036854775807)
               and r.group_id > a.place_1 and r.group_id < coalesce(noted.key_1, 9223372036854775807)
             order by r.group_id, r.partition_id, r.commit_sequence limit 1)
            union all
            (select r.group_id, r.partition_id from msgtx.group_offset r
             where noted.key_1 > a.place_1 and r.group_id = noted.key_1 and r.partition_id < noted.key_2
             order by r.group_id, r.partition_id, r.commit_sequence limit 1)) f limit 1) fresh on true
    where coalesce(fresh.key_1, noted.key_1) is not null
$$;
