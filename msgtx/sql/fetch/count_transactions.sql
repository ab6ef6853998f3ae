-- count_transactions(partitions, starts, ends, max_rows) → per partition how many committed transactions begin in [start,
-- end): their first row there does. Of a range between two cuts these are all that have a row in it. A partition that does
-- not exist, or has nothing there, is absent.
--   max_rows   of the log per partition: next_offset is where to continue, the range's end when all was looked at
-- Reads record_batch, partition and, through is_committed, the transaction tables.
-- right: consume, observe
-- plan: look-ups, nested loops
create function msgtx.count_transactions(partition_ids int[], starts bigint[], ends bigint[], max_rows int)
returns table (partition_id int, next_offset bigint, transactions bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
    return query
    select a.partition_id,
           case when count(*) < max_rows then a.range_end else least(max(r.last_offset) + 1, a.range_end) end,
           count(*) filter (
               where r.transaction_number is not null and earlier.transaction_number is distinct from r.transaction_number
                 and msgtx.is_committed(
                     a.partition_id, r.base_offset, r.producer_id, r.producer_epoch, r.transaction_number))
    from unnest(partition_ids, starts, ends) a(partition_id, range_start, range_end)
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = a.partition_id limit 1) p
    cross join lateral (
        select b.base_offset, b.last_offset, b.producer_id, b.producer_epoch, b.transaction_number, b.base_sequence
        from msgtx.rows_between(a.partition_id, greatest(a.range_start, p.log_start_offset), a.range_end - 1) b
        order by b.base_offset limit max_rows) r
    left join lateral (
        select e.transaction_number from msgtx.record_batch e
        where e.partition_id = a.partition_id and e.producer_id = r.producer_id and e.producer_epoch = r.producer_epoch
          and e.base_sequence < r.base_sequence
        order by e.base_sequence desc limit 1) earlier on r.transaction_number is not null
    group by a.partition_id, a.range_end;
end $$;
