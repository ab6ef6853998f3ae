-- newest_share_states(group_id) → what a share group knows of each partition, as it was last written.
-- Reads share_state.
create function msgtx.newest_share_states(in_group_id int)
returns table (partition_id int, next_offset bigint, spans msgtx.share_span[]) language sql stable
as $$
    select known.partition_id, newest.next_offset, newest.spans
    from (select distinct s.partition_id from msgtx.share_state s where s.group_id = in_group_id) known
    cross join lateral (
        select s.next_offset, s.spans from msgtx.share_state s
        where s.group_id = in_group_id and s.partition_id = known.partition_id order by s.version desc limit 1) newest
$$;
