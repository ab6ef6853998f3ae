-- is_below_floors(partitions, last_offsets) → whether the floor of each of these partitions is above the offset; deleted
-- ones do not count. A transaction below the floors needs its decision no longer (P29). Reads partition, partition_floor.
create function msgtx.is_below_floors(in_partitions int[], last_offsets bigint[]) returns boolean language sql stable as $$
    select coalesce(bool_and(s.last_offset < coalesce((
        select f.stable_floor from msgtx.partition_floor f
        where f.partition_id = s.partition_id order by f.stable_floor desc limit 1), 0)), true)
    from unnest(in_partitions, last_offsets) s(partition_id, last_offset)
    cross join lateral (select from msgtx.partition p where p.partition_id = s.partition_id limit 1) p
$$;
