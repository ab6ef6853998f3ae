-- unsettled_partitions(shards, among) → of these partitions (null: of all), those with work left: an open transaction, a
-- missing marker, or a floor to raise. Their floor is below the log end, and a transaction began or wrote last there, or
-- retention has emptied them; and deleted ones with the beginning of a transaction. shards null: of all. Reads partition,
-- transaction_partition, partition_floor, record_batch: a few index probes for each partition.
-- plan: look-ups, nested loops, in order
create function msgtx.unsettled_partitions(shards int[] default null, among int[] default null)
returns table (partition_id int, stable_floor bigint) language plpgsql stable as $$
#variable_conflict use_column
declare
    -- Not in the statement: the planner would call it, to know how many there are.
    asked constant int[] := case when among is null then msgtx.partitions_after(-1, 2147483647) else among end;
begin
    return query
    select a.partition_id, coalesce(floor.stable_floor, 0)
    from unnest(asked) a(partition_id)
    left join lateral (
        select p.log_start_offset from msgtx.partition p where p.partition_id = a.partition_id limit 1) p on true
    left join lateral (
        select true as is_known from msgtx.transaction_partition tp
        where tp.partition_id = a.partition_id limit 1) began on true
    left join lateral msgtx.floor_of(a.partition_id) floor on true
    left join lateral msgtx.last_row_of(a.partition_id) tail on true
    where (shards is null or a.partition_id % 50 = any(shards))
      -- A transaction in one call has no row of where it began: the last batch shows it.
      and ((tail.last_offset is null and (began.is_known or p.log_start_offset > coalesce(floor.stable_floor, 0)))
           or ((began.is_known or tail.transaction_number is not null)
               and tail.last_offset >= coalesce(floor.stable_floor, 0)));
end $$;
