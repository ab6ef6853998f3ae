-- recent_partitions(since_ms, most) → the partitions to which something was appended within this time (null: ever), of the
-- topics that the caller may consume, the last one first; at most `most`. Reads topic, partition, record_batch.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.recent_partitions(since_ms bigint, most int)
returns table (partition_id int, topic text, partition_index int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume}');
    since constant timestamptz := msgtx.clock() - since_ms * interval '1 ms';
begin
    return query
    select p.partition_id, t.name, p.partition_index
    from msgtx.partition p
    cross join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    cross join lateral (select r.appended_at from msgtx.last_row_of(p.partition_id) r) newest
    where coalesce(p.topic_id = any(visible), true) and (since is null or newest.appended_at >= since)
    order by newest.appended_at desc, p.partition_id limit most;
end $$;
