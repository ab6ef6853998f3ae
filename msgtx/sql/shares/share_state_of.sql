-- share_state_of(group_id, partition) → what a share group has in flight in a partition: its newest version. Reads
-- share_state.
create function msgtx.share_state_of(in_group_id int, in_partition_id int) returns setof msgtx.share_state
language sql stable as $$
    select s.* from msgtx.share_state s
    where s.group_id = in_group_id and s.partition_id = in_partition_id order by s.version desc limit 1
$$;
