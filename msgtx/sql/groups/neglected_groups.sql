-- neglected_groups(most) → consumer groups whose members have not rebalanced in time, the oldest change first; `found`:
-- their number.
--   stale_since   when members or topics began to differ from those of the assignment, if that was earlier than the longest
--                 session timeout of the living members, and none of them has divided the partitions again; else null
--   dead          members with partitions whose session has been over for as long again as it may last; partitions: those
--                 that they own; heard_of_at: the oldest of their last heartbeats
-- Reads consumer_group, share_group, installation, group_member, group_heartbeat, group_assignment.
-- right: observe of all topics
-- null: session_timeout_ms, stale_since, partitions, heard_of_at
-- plan: look-ups, nested loops
create function msgtx.neglected_groups(most int)
returns table (
    group_name text, generation int, members int, session_timeout_ms int, stale_since timestamptz, dead int, partitions int,
    heard_of_at timestamptz, checked_at timestamptz, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    checked_now timestamptz := msgtx.clock();
begin
    return query
    select n.name, n.generation, n.members::int, n.session_timeout_ms, n.stale_since, n.dead::int, n.partitions::int,
           n.heard_of_at, checked_now, count(*) over ()
    from (
        select g.name, g.generation, exists (select from msgtx.share_group s where s.group_id = g.group_id) as is_share,
            living.members, living.session_timeout_ms, dead.dead, dead.partitions, dead.heard_of_at,
               case when living.members > 0
                    and changed.at < checked_now - living.session_timeout_ms * interval '1 ms'
                        then changed.at end as stale_since
        from msgtx.consumer_group g
        cross join msgtx.installation i
        cross join lateral (
            select greatest(case when g.stale then g.changed_at end,
                            case when g.topics_version <> i.topics_version then i.topics_changed_at end) as at) changed
        cross join lateral (
            select count(*) as members, max(m.session_timeout_ms) as session_timeout_ms
            from msgtx.group_member m
            cross join lateral msgtx.newest_heartbeat(m.member_number) newest
            where m.group_id = g.group_id
              and not msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, checked_now)) living
        cross join lateral (
            -- From the owners: members times partitions would be too many.
            select count(*) as dead, sum(a.partitions) as partitions, min(newest.heartbeat_at) as heard_of_at
            from (
                select a.owner, count(*) as partitions from msgtx.group_assignment a
                where a.group_id = g.group_id group by a.owner) a
            cross join lateral (
                select m.session_timeout_ms from msgtx.group_member m where m.member_number = a.owner limit 1) m
            cross join lateral msgtx.newest_heartbeat(a.owner) newest
            where abs(extract(epoch from checked_now - newest.heartbeat_at)) * 1000
                > 2 * m.session_timeout_ms::bigint) dead) n
    where (n.stale_since is not null or n.dead > 0) and not n.is_share
    order by least(n.stale_since, n.heard_of_at), n.name
    limit most;
end $$;
