-- measure_logs(partitions) → ends of the logs, and the bytes of their records. An unknown partition is absent. Its cost is
-- bounded, however long the logs are: at most 22 rows of each are looked at.
--   bytes   counted in a log of at most 8 rows, else from the rows at 8 places of equal distance: their records stand for
--           all
-- Reads record_batch and, through fetch_batches, the transaction tables.
-- right: consume, observe
-- plan: look-ups, nested loops, in order
create function msgtx.measure_logs(partition_ids int[])
returns table (
    partition_id int, log_start_offset bigint, last_stable_offset bigint, log_end_offset bigint, bytes bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    places constant int := 8;
    ignored constant boolean := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
begin
    return query
    select f.partition_id, f.log_start_offset, f.last_stable_offset, f.log_end_offset,
           case when few.batches <= places then few.bytes
                else ((f.log_end_offset - f.log_start_offset) * sampled.bytes_per_offset)::bigint end
    from msgtx.log_ends(partition_ids, 'read_committed') f
    cross join lateral (
        select count(*) as batches, coalesce(sum(front.byte_size), 0)::bigint as bytes
        from (select r.byte_size from msgtx.record_batch r
              where r.partition_id = f.partition_id order by r.base_offset limit places + 1) front) few
    left join lateral (
        -- An offset that compaction has emptied has no bytes.
        select avg(case when at_place.last_offset >= place.at
                        then at_place.byte_size::float8 / (at_place.last_offset - at_place.base_offset + 1) else 0 end)
                   as bytes_per_offset
        from (select f.log_start_offset + (2 * i + 1) * (f.log_end_offset - f.log_start_offset) / (2 * places) as at
              from generate_series(0, places - 1) i) place
        left join lateral (
            select r.base_offset, r.last_offset, r.byte_size from msgtx.record_batch r
            where r.partition_id = f.partition_id and r.base_offset <= place.at
            order by r.base_offset desc limit 1) at_place on true) sampled on few.batches > places;
end $$;
