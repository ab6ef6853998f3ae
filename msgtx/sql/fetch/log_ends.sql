-- log_ends(partitions, isolation) → the ends of logs; readable_end: that of a reader at this isolation. Reads what
-- fetch_batches does.
create function msgtx.log_ends(partition_ids int[], isolation text)
returns table (
    partition_id int, log_start_offset bigint, last_stable_offset bigint, log_end_offset bigint, readable_end bigint)
language sql stable as $$
    select f.partition_id, f.log_start_offset, f.last_stable_offset, f.log_end_offset,
           case isolation when 'read_committed' then f.last_stable_offset else f.log_end_offset end
    from msgtx.fetch_batches(
        partition_ids, array_fill(0::bigint, array[cardinality(partition_ids)]),
        array_fill(null::text, array[cardinality(partition_ids)]), isolation, 0, 0) f
$$;
