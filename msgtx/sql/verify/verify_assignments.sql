-- verify_assignments(partitions, after, most) looks at the next assignments of these partitions, by key, for verify, on one
-- snapshot. → the last key (null: the end), how many rows, and as JSON each one that breaks a rule.
--   owner_no_member   its owner is no member of the group, or there is none      target_no_member   who is to own it is none
--   owner_from_later  it is owned since a generation that the group has not reached
-- Reads group_assignment, consumer_group, group_member.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.verify_assignments(
    partition_ids int[], in_after bigint[], most int, out next_after bigint[], out looked_at bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    with chunk as materialized (
        select a.* from msgtx.group_assignment a
        where (a.group_id, a.partition_id) > (coalesce(in_after[1], -1), coalesce(in_after[2], -1))
        order by a.group_id, a.partition_id limit most),
    looked as (
        select c.partition_id, c.owner, c.owner_since, c.target, g.name as group_name, g.generation,
               array_remove(array[
                   case when owner.member_number is null then 'owner_no_member' end,
                   case when c.target is not null and target.member_number is null then 'target_no_member' end,
                   case when c.owner_since <= g.generation is not true then 'owner_from_later' end], null) as rules
        from chunk c
        left join lateral (
            select g.name, g.generation from msgtx.consumer_group g where g.group_id = c.group_id limit 1) g on true
        left join lateral (
            select m.member_number from msgtx.group_member m
            where m.member_number = c.owner and m.group_id = c.group_id limit 1) owner on true
        left join lateral (
            select m.member_number from msgtx.group_member m
            where m.member_number = c.target and m.group_id = c.group_id limit 1) target on true
        where c.partition_id = any(partition_ids))
    select (select max(array[c.group_id, c.partition_id]) from chunk c), (select count(*) from chunk c),
           coalesce(jsonb_agg(to_jsonb(l) order by l.partition_id) filter (where l.rules <> '{}'), '[]')
    into next_after, looked_at, broken
    from looked l;
end $$;
