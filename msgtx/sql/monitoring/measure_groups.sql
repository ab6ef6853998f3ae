-- measure_groups(after, most) → the members of the next `most` consumer groups, as list_groups shows them, from the group
-- behind `after`, and in each row the place to continue from (null: the end).
-- Reads consumer_group and what shown_groups does.
-- right: observe of all topics
-- null: group_name, members, overdue, settled
-- plan: look-ups
create function msgtx.measure_groups(in_after int[] default null, most int default 250)
returns table (group_name text, members int, overdue int, settled boolean, next_after int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    group_ids int[];
    came_to int[];
begin
    select array_agg(g.group_id), case when count(*) = most then array[max(g.group_id)] end into group_ids, came_to
    from (select c.group_id from msgtx.consumer_group c
          where c.group_id > coalesce(in_after[1], -1) order by c.group_id limit most) g;
    return query
    select s.group_name, s.members, s.overdue, s.settled, came_to from msgtx.shown_groups(group_ids) s;
    if not found and came_to is not null then  -- share groups alone; it goes on behind them
        next_after := came_to;
        return next;
    end if;
end $$;
