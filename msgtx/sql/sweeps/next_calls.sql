-- next_calls(after) → the next member behind this one that has rows in share_call, or of which a sweep has noted something;
-- no row: there is none. One that is noted is not looked for in share_call, whose first rows may be removed ones by the
-- thousand (swept_below). Reads share_call, swept.
create function msgtx.next_calls(after bigint) returns table (key_1 bigint) language sql stable as $$
    select coalesce(fresh.key_1, noted.key_1)
    from (select next_calls.after as place offset 0) a
    left join lateral (
        select s.key_1 from msgtx.swept s
        where s.kind = 'call' and s.key_1 > a.place order by s.key_1, s.key_2, s.below limit 1) noted on true
    left join lateral (
        select r.member_number::bigint as key_1 from msgtx.share_call r
        where r.member_number > a.place and r.member_number < coalesce(noted.key_1, 9223372036854775807)
        order by r.member_number, r.call_number limit 1) fresh on true
    where coalesce(fresh.key_1, noted.key_1) is not null
$$;
