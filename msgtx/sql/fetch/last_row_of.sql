-- last_row_of(partition) → the last row of a log. Reads record_batch.
create function msgtx.last_row_of(in_partition_id int) returns setof msgtx.record_batch language sql stable as $$
    select b.* from msgtx.record_batch b where b.partition_id = in_partition_id order by b.base_offset desc limit 1
$$;
