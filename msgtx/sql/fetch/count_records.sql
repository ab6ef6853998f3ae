-- count_records(partitions, positions, isolation) → per partition, how many records a reader at this position would still
-- be given: aborted ones do not count, and read_committed stops at the last stable offset. Lag that is 0 when caught up.
-- Reads partition, record_batch and, through fetch_batches and is_committed, the transaction tables.
-- right: consume, admin
-- plan: look-ups, nested loops, in order
create function msgtx.count_records(partition_ids int[], positions bigint[], isolation text)
returns table (partition_id int, records bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume,admin}', partition_ids);
    end if;
    return query
    select asked.partition_id, coalesce(n.records, 0)::bigint
    from unnest(partition_ids, positions) asked(partition_id, position)
    cross join lateral (
        select f.log_start_offset,
               case when isolation = 'read_committed' then f.last_stable_offset else f.log_end_offset end as readable_end
        from msgtx.fetch_batches(array[asked.partition_id], array[0::bigint], array[null::text], isolation, 0, 0) f) e
    left join lateral (
        select sum(case
                   when b.base_offset >= greatest(asked.position, e.log_start_offset) then b.record_count
                   else (select count(*) from generate_series(1, b.record_count) i
                         where b.base_offset + coalesce(b.offset_deltas[i], i - 1)
                               >= greatest(asked.position, e.log_start_offset)
                           and b.base_offset + coalesce(b.offset_deltas[i], i - 1) < e.readable_end) end) as records
        from msgtx.record_batch b
        where b.partition_id = asked.partition_id and b.base_offset < e.readable_end
          and b.base_offset >= coalesce((
              select r.base_offset from msgtx.record_batch r
              where r.partition_id = asked.partition_id and r.base_offset <= greatest(asked.position, e.log_start_offset)
              order by r.base_offset desc limit 1), 0)
          and b.last_offset >= greatest(asked.position, e.log_start_offset)
          and (isolation <> 'read_committed' or b.transaction_number is null or msgtx.is_committed(
              b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number))) n on true;
end $$;
