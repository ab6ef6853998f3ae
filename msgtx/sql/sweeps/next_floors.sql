-- next_floors(after) → the next partition behind this one that has rows in partition_floor, or of which a sweep has noted
-- something; no row: there is none. One that is noted is not looked for in partition_floor, whose first rows may be removed
-- ones by the thousand (swept_below). Reads partition_floor, swept.
create function msgtx.next_floors(after bigint) returns table (key_1 bigint) language sql stable as $$
    select coalesce(fresh.key_1, noted.key_1)
    from (select next_floors.after as place offset 0) a
    left join lateral (
        select s.key_1 from msgtx.swept s
        where s.kind = 'floor' and s.key_1 > a.place order by s.key_1, s.key_2, s.below limit 1) noted on true
    left join lateral (
        select r.partition_id::bigint as key_1 from msgtx.partition_floor r
        where r.partition_id > a.place and r.partition_id < coalesce(noted.key_1, 9223372036854775807)
        order by r.partition_id, r.stable_floor limit 1) fresh on true
    where coalesce(fresh.key_1, noted.key_1) is not null
$$;
