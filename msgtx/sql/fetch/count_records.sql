-- count_records(partitions, positions, isolation) → per partition, how many records a reader at this position would still
-- be given: aborted ones do not count, and read_committed stops at the last stable offset. Lag that is 0 when caught up.
-- Reads record_batch and, through readable_ranges and is_committed, the transaction tables.
-- right: consume, observe
-- plan: look-ups, nested loops, in order
create function msgtx.count_records(partition_ids int[], positions bigint[], isolation text)
returns table (partition_id int, records bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
    return query
    select e.partition_id, coalesce(n.records, 0)::bigint
    from msgtx.readable_ranges(partition_ids, positions, isolation) e
    left join lateral (
        select sum(case
                   when b.base_offset >= e.start_offset then b.record_count
                   else (select count(*) from generate_series(1, b.record_count) i
                         where b.base_offset + coalesce(b.offset_deltas[i], i - 1) >= e.start_offset
                           and b.base_offset + coalesce(b.offset_deltas[i], i - 1) < e.readable_end) end) as records
        from msgtx.rows_between(e.partition_id, e.start_offset, e.readable_end - 1) b
        where (isolation <> 'read_committed' or b.transaction_number is null or msgtx.is_committed(
              b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number))) n on true;
end $$;
