-- first_records(partitions, positions) → per partition the first record that a read_committed reader at this position would
-- be given, its time, and how old it is (0 if it is dated in the future). A partition without such a record is absent.
-- Reads partition, record_batch and, through fetch_batches and is_committed, the transaction tables.
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
    select asked.partition_id, found.at_offset, found.at_timestamp, greatest(now_ms - found.at_timestamp, 0)
    from unnest(partition_ids, positions) asked(partition_id, position)
    cross join lateral (
        select f.last_stable_offset, greatest(asked.position, f.log_start_offset) as start
        from msgtx.log_ends(array[asked.partition_id], 'read_committed') f offset 0) e
    cross join lateral (
        select b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) as at_offset,
               coalesce(u.record_timestamp, b.max_timestamp) as at_timestamp
        from msgtx.rows_between(asked.partition_id, e.start, e.last_stable_offset - 1) b
        cross join lateral unnest(b."values", b.timestamps) with ordinality u(record_value, record_timestamp, ordinal)
        where (b.transaction_number is null or msgtx.is_committed(
                  b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number))
          and b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) >= e.start
          and b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) < e.last_stable_offset
        order by b.base_offset, u.ordinal limit 1) found;
end $$;
