-- member_assignment(group, member) → what a member owns, ascending, since which generation, and what it shall own; no row if it is
-- not a member (any more). stale: the assignment was made of other members or topics than there are now.
-- Reads consumer_group, group_member, group_assignment, installation.
create function msgtx.member_assignment(group_name text, in_member_number bigint)
returns table (generation int, stale boolean, owned int[], owned_since int[], target int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select g.generation, g.stale or g.topics_version <> i.topics_version,
           coalesce(array_agg(a.partition_id order by a.partition_id) filter (where a.owner = in_member_number), '{}'),
           coalesce(array_agg(a.owner_since order by a.partition_id) filter (where a.owner = in_member_number), '{}'),
           coalesce(array_agg(a.partition_id order by a.partition_id) filter (where a.target = in_member_number), '{}')
    from msgtx.consumer_group g
    cross join msgtx.installation i
    join msgtx.group_member m on m.member_number = in_member_number and m.group_id = g.group_id
    left join msgtx.group_assignment a on a.group_id = g.group_id and in_member_number in (a.owner, a.target)
    where g.name = group_name
    group by g.group_id, i.topics_version;
end $$;
