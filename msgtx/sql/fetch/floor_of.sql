-- floor_of(partition) → below which offset everything is decided; no row: nothing is known. Reads partition_floor.
create function msgtx.floor_of(in_partition_id int) returns table (stable_floor bigint) language sql stable as $$
    select f.stable_floor from msgtx.partition_floor f
    where f.partition_id = in_partition_id order by f.stable_floor desc limit 1
$$;
