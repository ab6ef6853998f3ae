-- measure_partitions(after, most) → the next partitions, from the one behind `after`: ends of the log, and the bytes of
-- its records (measure_logs).
-- Reads partition, topic and what measure_logs does.
-- right: observe of all topics
-- plan: look-ups, nested loops, in order
create function msgtx.measure_partitions(in_after int default null, most int default 1000)
returns table (
    partition_id int, topic text, partition_index int, log_start_offset bigint, last_stable_offset bigint,
    log_end_offset bigint, bytes bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ids constant int[] := array(
        select p.partition_id from msgtx.partition p
        where p.partition_id > coalesce(in_after, -1) order by p.partition_id limit most);
begin
    return query
    select f.partition_id, t.name, p.partition_index, f.log_start_offset, f.last_stable_offset, f.log_end_offset, f.bytes
    from msgtx.measure_logs(ids) f
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = f.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t;
end $$;
