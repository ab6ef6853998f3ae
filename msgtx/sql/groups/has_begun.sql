-- has_begun(group_id, partitions) → whether a group has an offset in one of these partitions. Reads group_offset.
create function msgtx.has_begun(in_group_id int, partition_ids int[]) returns boolean language sql stable as $$
    select exists (
        select from unnest(partition_ids) u
        where (select true from msgtx.group_offset o
               where o.group_id = in_group_id and o.partition_id = u limit 1))
$$;
