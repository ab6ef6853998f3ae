-- shown_groups(group_ids) → consumer groups as list_groups shows them, in order of their names. An unknown one is absent, as
-- is a share group.
-- Reads consumer_group, share_group, installation, group_member, group_heartbeat, group_assignment, group_offset.
-- plan: look-ups, nested loops
create function msgtx.shown_groups(group_ids int[])
returns table (
    group_name text, generation int, strategy text, members int, overdue int, settled boolean, has_offsets boolean)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment timestamptz := msgtx.clock();
begin
    return query
    select g.name, g.generation, g.strategy, (m.members - o.overdue)::int, o.overdue::int,
           not g.stale and g.topics_version = i.topics_version and unsettled.found is null and behind.found is null,
               offsets.found is not null
    from unnest(group_ids) u(group_id)
    cross join lateral (
        select c.* from msgtx.consumer_group c where c.group_id = u.group_id limit 1) g
    cross join msgtx.installation i
    cross join lateral (
        select count(*) as members from msgtx.group_member m where m.group_id = g.group_id) m
    cross join lateral (
        select count(*) as overdue from msgtx.overdue_members(g.group_id, moment) o) o
    left join lateral (
        select true as found from msgtx.group_assignment a
        where a.group_id = g.group_id and a.owner is distinct from a.target limit 1) unsettled on true
    left join lateral (
        select true as found from msgtx.group_member m
        where m.group_id = g.group_id and m.topics_version <> i.topics_version limit 1) behind on true
    left join lateral (
        select true as found from msgtx.group_offset o where o.group_id = g.group_id limit 1) offsets on true
    where not exists (select from msgtx.share_group s where s.group_id = g.group_id)
    order by g.name;
end $$;
