-- rows_between(partition, first, last) → the rows of the log that hold offsets of this range, in order. An index on
-- base_offset alone cannot say in which row an offset lies. Reads record_batch.
create function msgtx.rows_between(in_partition_id int, first bigint, last bigint) returns setof msgtx.record_batch
language sql stable as $$
    select b.* from msgtx.record_batch b
    where b.partition_id = in_partition_id and b.base_offset <= last and b.last_offset >= first
      and b.base_offset >= coalesce((
          select e.base_offset from msgtx.record_batch e
          where e.partition_id = in_partition_id and e.base_offset <= first order by e.base_offset desc limit 1), 0)
    order by b.base_offset
$$;
