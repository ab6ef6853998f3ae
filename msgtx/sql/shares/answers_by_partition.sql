-- answers_by_partition(groups, members, partitions, ranges, …) → the answers of each member for each share partition; ranges
-- ascending, group_id null: there is no such group. Reads consumer_group.
create function msgtx.answers_by_partition(
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    in_answers text[], in_reasons text[], delays_ms int[],
    in_calls bigint[])
returns table (
    group_id int, group_name text, member_number bigint, partition_id int, firsts bigint[], lasts bigint[], answers text[],
    reasons text[], delays int[], calls bigint[])
language sql stable as $$
    select c.group_id, u.group_name, u.member_number, u.partition_id, array_agg(u.first_offset order by u.first_offset),
           array_agg(u.last_offset order by u.first_offset), array_agg(u.answer order by u.first_offset),
           -- a reason has to fit into its topic with its record
           array_agg(left(u.reason, 1000) order by u.first_offset), array_agg(u.delay_ms order by u.first_offset),
           array_agg(u.held_call order by u.first_offset)
    from unnest(group_names, member_numbers, partition_ids, first_offsets, last_offsets, in_answers, in_reasons, delays_ms,
                in_calls) u(group_name, member_number, partition_id, first_offset, last_offset, answer, reason, delay_ms,
                            held_call)
    left join lateral (select c.group_id from msgtx.consumer_group c where c.name = u.group_name limit 1) c on true
    group by c.group_id, u.group_name, u.member_number, u.partition_id
$$;
