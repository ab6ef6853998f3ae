-- late_logs(late_ms, late_bytes, most) → partitions on which retention is behind, those with the oldest batch first;
-- `found`: their number. The first batch is decided, and is older than retention_ms + late_ms; or the counted bytes are
-- late_bytes more than retention_bytes.
--   age_ms   of the first batch, by the time that is_old takes        bytes   counted so far, of logs with retention_bytes
-- Reads partition, topic, record_batch and, through decided_end, the transaction tables.
-- right: observe of all topics
-- null: bytes
-- plan: look-ups, nested loops
create function msgtx.late_logs(late_ms bigint, late_bytes bigint, most int)
returns table (
    topic text, partition_index int, age_ms bigint, retention_ms bigint, bytes bigint, retention_bytes bigint,
    pace bigint, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    longest_ms constant bigint := 3155760000000;  -- a hundred years: a sum may not overflow
    checked_now constant timestamptz := msgtx.clock();
begin
    return query
    select t.name, p.partition_index, first.age_ms, t.retention_ms,
           case when t.retention_bytes >= 0 then p.counted_bytes end, t.retention_bytes,
           msgtx.setting_value('sweep_max_bytes_per_second'), count(*) over ()
    from msgtx.partition p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    cross join lateral (
        select r.base_offset, r.max_timestamp, r.appended_at,
               (extract(epoch from checked_now) * 1000 - least(
                   case when r.max_timestamp >= 0 then r.max_timestamp end, extract(epoch from r.appended_at) * 1000)
               )::bigint as age_ms
        from msgtx.record_batch r
        where r.partition_id = p.partition_id order by r.base_offset limit 1) first
    where t.cleanup_policy <> 'compact'
      and (t.retention_ms >= 0 and msgtx.is_old(
               first.max_timestamp, first.appended_at, least(t.retention_ms, longest_ms) + late_ms, checked_now)
           or (t.retention_bytes >= 0 and p.counted_bytes - t.retention_bytes >= late_bytes))
      and first.base_offset < msgtx.decided_end(p.partition_id)
    order by first.age_ms desc, t.name, p.partition_index
    limit most;
end $$;
