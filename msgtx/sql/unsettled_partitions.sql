-- unsettled_partitions(shards) → the partitions on which a transaction ever began and whose floor is below their log end, and
-- deleted ones on which one began: whatever is open, or misses its marker, has begun on one of them. shards null: of all.
-- Reads transaction_partition, partition, partition_floor, record_batch: a few index probes for each partition.
create function msgtx.unsettled_partitions(shards int[] default null)
returns table (partition_id int, stable_floor bigint) language plpgsql stable
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
    return query
    with recursive touched(partition_id) as (
        select (select tp.partition_id from msgtx.transaction_partition tp order by tp.partition_id limit 1)
        union all
        select (select tp.partition_id from msgtx.transaction_partition tp
                where tp.partition_id > t.partition_id order by tp.partition_id limit 1)
        from touched t where t.partition_id is not null)
    select t.partition_id, coalesce(floor.stable_floor, 0)
    from touched t
    left join lateral (
        select f.stable_floor from msgtx.partition_floor f
        where f.partition_id = t.partition_id order by f.stable_floor desc limit 1) floor on true
    left join lateral (
        select r.last_offset from msgtx.record_batch r
        where r.partition_id = t.partition_id order by r.base_offset desc limit 1) tail on true
    where t.partition_id is not null and (shards is null or t.partition_id % 50 = any(shards))
      and (tail.last_offset is null or tail.last_offset >= coalesce(floor.stable_floor, 0));
end $$;
