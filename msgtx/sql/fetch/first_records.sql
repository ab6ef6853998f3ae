-- first_records(partitions, positions) → per partition the first record that a read_committed reader at this position would
-- be given, its time, and how old it is (0 if it is dated in the future). A partition without such a record is absent.
-- Reads record_batch and, through readable_ranges and is_committed, the transaction tables.
-- right: consume, observe
-- plan: look-ups, nested loops, in order
create function msgtx.first_records(partition_ids int[], positions bigint[])
returns table (partition_id int, record_offset bigint, record_timestamp bigint, age_ms bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    now_ms bigint := (extract(epoch from msgtx.clock()) * 1000)::bigint;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
    return query
    select e.partition_id, found.at_offset, found.at_timestamp, greatest(now_ms - found.at_timestamp, 0)
    from msgtx.readable_ranges(partition_ids, positions, 'read_committed') e
    cross join lateral (
        select b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) as at_offset,
               coalesce(u.record_timestamp, b.max_timestamp) as at_timestamp
        from msgtx.rows_between(e.partition_id, e.start_offset, e.readable_end - 1) b
        cross join lateral unnest(b."values", b.timestamps) with ordinality u(record_value, record_timestamp, ordinal)
        where (b.transaction_number is null or msgtx.is_committed(
                  b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number))
          and b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) >= e.start_offset
          and b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) < e.readable_end
        order by b.base_offset, u.ordinal limit 1) found;
end $$;
