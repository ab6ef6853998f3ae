-- list_groups(names) → consumer groups by name, null: all that view consumer_groups shows the caller. An unknown one is
-- absent, as is a share group. 42501 for a named group that the caller may neither use nor observe.
--   members, overdue   the numbers of living members, and of members whose session is over
--   settled            the assignment is of these members and today's topics, every pattern was compared with these topics,
--                      and each owner is the target
--   has_offsets        something is committed, or waits for a decision
-- Reads consumer_group and what shown_groups does.
-- right: consume, observe
-- null: strategy
create function msgtx.list_groups(names text[] default null)
returns table (
    group_name text, generation int, strategy text, members int, overdue int, settled boolean, has_offsets boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_sight_of_groups(names);
    return query
    select s.group_name, s.generation, s.strategy, s.members, s.overdue, s.settled, s.has_offsets
    from msgtx.shown_groups(array(
        select g.group_id from msgtx.consumer_group g where g.name = any(names)
           or names is null and (msgtx.acts_for_owner() or g.name in (select v.name from msgtx.consumer_groups v)))) s
    order by s.group_name;
end $$;
