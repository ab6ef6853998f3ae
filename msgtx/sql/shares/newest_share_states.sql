-- newest_share_states(group_id) → a share group's newest state of each partition. Partition by partition
-- downwards: the newest version of each comes first, and any number of superseded ones is skipped.
-- Reads share_state.
create function msgtx.newest_share_states(in_group_id int)
returns table (partition_id int, next_offset bigint, spans msgtx.share_span[]) language sql stable
as $$
    with recursive newest(partition_id, next_offset, spans) as (
        (select s.partition_id, s.next_offset, s.spans from msgtx.share_state s where s.group_id = in_group_id
         order by s.partition_id desc, s.version desc limit 1)
        union all
        select next.partition_id, next.next_offset, next.spans from newest n
        cross join lateral (
            select s.partition_id, s.next_offset, s.spans from msgtx.share_state s
            where s.group_id = in_group_id and s.partition_id < n.partition_id
            order by s.partition_id desc, s.version desc limit 1) next)
    select n.partition_id, n.next_offset, n.spans from newest n
$$;
