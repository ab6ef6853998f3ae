-- dead_letter_partitions(groups, partitions, answers) → the partitions for the dead letters of these answers,
-- ascending: the call that applies the answers locks these before the share partitions.
create function msgtx.dead_letter_partitions(group_names text[], partition_ids int[], answers text[]) returns int[]
language plpgsql stable as $$
begin
    if array_position(answers, 'reject') is null then
        return '{}';
    end if;
    return array(
        select d.partition_id
        from (select distinct u.group_name, u.partition_id
              from unnest(group_names, partition_ids, answers) u(group_name, partition_id, answer)
                  where u.answer = 'reject') r
        cross join lateral (select msgtx.dead_letter_partition(r.group_name, r.partition_id)) d(partition_id)
        where d.partition_id is not null
        group by d.partition_id order by d.partition_id);
end $$;
