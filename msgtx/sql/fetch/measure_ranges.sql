-- measure_ranges(partitions, starts, ends, bucket_ms, max_rows) → per partition how many committed records lie in [start,
-- end), and about how many bytes, by time. A partition that does not exist, or has nothing there, is absent.
--   bucket_ms   the width of a bucket of records' timestamps; buckets name their begin, ascending. null: one, 0
--   max_rows    of the log per partition: next_offset is where to continue, the range's end when all was looked at
--   bytes       as stored: those of a row, spread evenly over its records
-- Undecided records are not counted; a cut has none below its ends. Records that retention has removed are not counted.
-- STABLE: one snapshot. The values stay where they are: a row is read without them.
-- Reads record_batch, partition and, through is_committed, the transaction tables.
-- right: consume, observe
-- plan: look-ups, nested loops
create function msgtx.measure_ranges(
    partition_ids int[], starts bigint[], ends bigint[], bucket_ms bigint, max_rows int)
returns table (partition_id int, next_offset bigint, buckets bigint[], records bigint[], bytes bigint[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
    if bucket_ms <= 0 then
        raise exception using errcode = 'MX042', message = format('a bucket has at least a millisecond, not %s', bucket_ms),
            detail = jsonb_build_object('name', 'bucket_ms', 'given', bucket_ms, 'limit', 1);
    end if;
    return query
    with chunk as materialized (
        select p.partition_id, greatest(a.range_start, p.log_start_offset) as range_start, a.range_end,
               r.base_offset, r.last_offset, r.record_count, r.byte_size, r.max_timestamp, r.timestamps, r.offset_deltas,
               r.producer_id, r.producer_epoch, r.transaction_number
        from unnest(partition_ids, starts, ends) a(partition_id, range_start, range_end)
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = a.partition_id limit 1) p
        cross join lateral (
            select b.* from msgtx.rows_between(
                a.partition_id, greatest(a.range_start, p.log_start_offset), a.range_end - 1) b
            order by b.base_offset limit max_rows) r),
    came_to as (
        select c.partition_id, case when count(*) < max_rows then max(c.range_end)
                                    else least(max(c.last_offset) + 1, max(c.range_end)) end as next_offset
        from chunk c group by c.partition_id),
    counted as (
        -- A row that lies in the range as a whole, and in one bucket, needs no look at its records.
        select c.partition_id,
               case when bucket_ms is null then 0 else c.max_timestamp - c.max_timestamp % bucket_ms end as bucket,
               c.record_count::bigint as records, c.byte_size::numeric as bytes
        from chunk c
        where c.base_offset >= c.range_start and c.last_offset < c.range_end
          and (bucket_ms is null or c.timestamps is null)
          and (c.transaction_number is null or msgtx.is_committed(
                  c.partition_id, c.base_offset, c.producer_id, c.producer_epoch, c.transaction_number))
        union all
        select c.partition_id, u.bucket, count(*), count(*) * c.byte_size::numeric / c.record_count
        from chunk c
        cross join lateral (
            select case when bucket_ms is null then 0 else t.at - t.at % bucket_ms end as bucket
            from unnest(coalesce(c.timestamps, array_fill(null::bigint, array[c.record_count])), c.offset_deltas)
                with ordinality r(record_timestamp, delta, ordinal)
            cross join lateral (
                select coalesce(r.record_timestamp, c.max_timestamp) as at,
                       c.base_offset + coalesce(r.delta, r.ordinal - 1) as at_offset) t
            where t.at_offset >= c.range_start and t.at_offset < c.range_end) u
        where not (c.base_offset >= c.range_start and c.last_offset < c.range_end
                   and (bucket_ms is null or c.timestamps is null))
          and (c.transaction_number is null or msgtx.is_committed(
                  c.partition_id, c.base_offset, c.producer_id, c.producer_epoch, c.transaction_number))
        group by c.partition_id, c.base_offset, c.byte_size, c.record_count, u.bucket),
    summed as (
        select n.partition_id, n.bucket, sum(n.records)::bigint as records, round(sum(n.bytes))::bigint as bytes
        from counted n where n.records > 0 group by n.partition_id, n.bucket)
    select t.partition_id, t.next_offset,
           coalesce(array_agg(s.bucket order by s.bucket) filter (where s.bucket is not null), '{}'),
           coalesce(array_agg(s.records order by s.bucket) filter (where s.bucket is not null), '{}'),
           coalesce(array_agg(s.bytes order by s.bucket) filter (where s.bucket is not null), '{}')
    from came_to t left join summed s on s.partition_id = t.partition_id
    group by t.partition_id, t.next_offset order by t.partition_id;
end $$;
