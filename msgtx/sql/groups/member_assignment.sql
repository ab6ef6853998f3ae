-- member_assignment(group, member) → the partitions of a member, ascending, each with the generation in which it got it,
-- and its target; no row if it is not a member (any more). stale: members or topics have changed since the assignment.
-- Reads consumer_group, group_member, group_assignment, installation.
-- right: consume
-- plan: look-ups
create function msgtx.member_assignment(group_name text, in_member_number bigint)
returns table (generation int, stale boolean, owned int[], owned_since int[], target int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    asked msgtx.consumer_group;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    select g.* into asked from msgtx.consumer_group g where g.name = group_name;
    if not exists (
        select from msgtx.group_member m where m.member_number = in_member_number and m.group_id = asked.group_id) then
        return;
    end if;
    return query
    select asked.generation, asked.stale or asked.topics_version <> (select i.topics_version from msgtx.installation i),
           coalesce(array_agg(a.partition_id order by a.partition_id) filter (where a.owner = in_member_number), '{}'),
           coalesce(array_agg(a.owner_since order by a.partition_id) filter (where a.owner = in_member_number), '{}'),
           coalesce(array_agg(a.partition_id order by a.partition_id) filter (where a.target = in_member_number), '{}')
    from msgtx.group_assignment a where a.group_id = asked.group_id and in_member_number in (a.owner, a.target);
end $$;
