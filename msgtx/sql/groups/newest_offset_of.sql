-- newest_offset_of(group_id, partition) → the row of a group's offset in a partition: the newest one that counts. Reads
-- group_offset and what offset_counts does.
create function msgtx.newest_offset_of(in_group_id int, in_partition_id int) returns setof msgtx.group_offset
language sql stable as $$
    select o.* from msgtx.group_offset o
    where o.group_id = in_group_id and o.partition_id = in_partition_id
      and msgtx.offset_counts(o.producer_id, o.producer_epoch, o.transaction_number)
    order by o.commit_sequence desc limit 1
$$;
