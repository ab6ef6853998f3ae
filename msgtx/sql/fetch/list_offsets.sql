-- list_offsets(partitions, times, isolation) → per partition its three ends and the offset for a time: −2 the log start,
-- −1 the end that this isolation may read, else the first record at or after this time in milliseconds (null: none).
-- read_committed never looks past the last stable offset, nor at aborted records.
-- Reads partition, record_batch, partition_floor, transaction tables.
-- right: any
-- null: at_timestamp, at_offset
create function msgtx.list_offsets(partition_ids int[], times bigint[], isolation text)
returns table (
    partition_id int, log_start_offset bigint, last_stable_offset bigint, log_end_offset bigint,
    at_offset bigint, at_timestamp bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_sort = off set enable_mergejoin = off
set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    known constant int[] := array(select distinct u from unnest(partition_ids) u);
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{produce,consume,observe}', partition_ids);
    return query
    select asked.partition_id, e.log_start_offset, e.last_stable_offset, e.log_end_offset,
           case asked.time when -2 then e.log_start_offset when -1 then e.readable_end else found.at_offset end,
           found.at_timestamp
    from unnest(partition_ids, times) asked(partition_id, time)
    join msgtx.log_ends(known, isolation) e using (partition_id)
    left join lateral (
        select b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) as at_offset,
               coalesce(u.record_timestamp, b.max_timestamp) as at_timestamp
        from msgtx.record_batch b
        cross join lateral unnest(b."values", b.timestamps) with ordinality u(record_value, record_timestamp, ordinal)
        where asked.time >= 0 and b.partition_id = asked.partition_id and b.max_timestamp >= asked.time
          and b.last_offset >= e.log_start_offset and b.base_offset < e.readable_end
          and (isolation <> 'read_committed' or b.transaction_number is null or msgtx.is_committed(
                  b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number))
          and coalesce(u.record_timestamp, b.max_timestamp) >= asked.time
          and b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) >= e.log_start_offset
          and b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1) < e.readable_end
        order by b.base_offset, u.ordinal limit 1) found on true;
end $$;
