-- list_groups(names) → consumer groups by name, null: all. An unknown one is absent, as is a share group.
--   members, overdue   the numbers of living members, and of members whose session is over
--   settled            the assignment is of these members and today's topics, every pattern was compared with these topics,
--                      and each owner is the target
--   has_offsets        something is committed, or waits for a decision
-- Reads consumer_group and what shown_groups does.
-- right: admin of all topics
-- null: strategy
create function msgtx.list_groups(names text[] default null)
returns table (
    group_name text, generation int, strategy text, members int, overdue int, settled boolean, has_offsets boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.group_name, s.generation, s.strategy, s.members, s.overdue, s.settled, s.has_offsets
    from msgtx.shown_groups(array(
        select g.group_id from msgtx.consumer_group g where names is null or g.name = any(names))) s
    order by s.group_name
$$;
