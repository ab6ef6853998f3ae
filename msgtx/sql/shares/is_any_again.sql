-- is_any_again(spans) → whether any record of these spans of a share partition is to be delivered again, or may be: then the general rules
-- look which ones are behind it. Reads group_member, group_heartbeat.
create function msgtx.is_any_again(spans msgtx.share_span[]) returns boolean language plpgsql volatile as $$
declare
    moment constant timestamptz := msgtx.clock();
begin
    return exists (
        select from unnest(spans) s
        where s.status <> 'acquired' or s.locked_until <= moment
           or (select not msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment)
               from msgtx.group_member m
               cross join lateral (
                   select h.heartbeat_at from msgtx.group_heartbeat h where h.member_number = m.member_number
                   order by h.heartbeat_number desc limit 1) newest
               where m.member_number = s.member_number limit 1) is not true);
end $$;
