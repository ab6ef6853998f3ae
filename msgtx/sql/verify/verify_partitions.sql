-- verify_partitions(partitions) → verify_partition of each, and what verify need not look at: last_row is where the newest
-- row of the log begins (null: it is empty), has_beginnings and has_markers say whether there are any. A look at nothing
-- takes as long as one at some rows. A partition that is gone has no row. Reads record_batch, transaction_partition,
-- transaction_marker.
-- right: admin of all topics
-- null: first_offset, stable_floor, last_row
-- plan: look-ups, nested loops
create function msgtx.verify_partitions(partition_ids int[])
returns table (
    partition_id int, log_start_offset bigint, first_offset bigint, log_end_offset bigint, stable_floor bigint,
    broken text[], last_row bigint, has_beginnings boolean, has_markers boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select i.partition_id, p.log_start_offset, p.first_offset, p.log_end_offset, p.stable_floor, p.broken,
           (select r.base_offset from msgtx.last_row_of(i.partition_id) r),
           exists (select from msgtx.transaction_partition t where t.partition_id = i.partition_id),
           exists (select from msgtx.transaction_marker m where m.partition_id = i.partition_id)
    from unnest(partition_ids) i(partition_id)
    cross join lateral msgtx.verify_partition(i.partition_id) p
    where p.log_start_offset is not null;
end $$;
