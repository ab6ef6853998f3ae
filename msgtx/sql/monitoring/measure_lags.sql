-- measure_lags(after, most) → how far groups are behind where they have committed offsets, for the next `most` pairs of
-- group and partition, from the one behind `after`; a row per group and topic, and in each where the look came to (null: the
-- end).
--   records   from the first record that a read_committed reader would still be given to the last stable offset; 0 when
--             caught up. What is aborted between the two counts, unlike in count_records: its cost would grow with the lag
--   age_ms    of the batch of the first such record of each partition, the highest; null: there is none
-- At most 100 aborted rows in front of it are passed by. Its cost is bounded, however long the logs are.
-- Reads group_offset, consumer_group, partition, topic and, through first_unread_batch, record_batch and the transaction
-- tables.
-- right: observe of all topics
-- null: group_name, topic, records, age_ms
-- plan: look-ups, nested loops
create function msgtx.measure_lags(in_after int[] default null, most int default 1000)
returns table (group_name text, topic text, records bigint, age_ms bigint, next_after int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    now_ms constant bigint := (extract(epoch from msgtx.clock()) * 1000)::bigint;
    group_ids int[];
    partition_ids int[];
    came_to int[];
begin
    select array_agg(k.key_1::int), array_agg(k.key_2::int) into group_ids, partition_ids
    from msgtx.keys_after('offset', coalesce(in_after[1], -1), coalesce(in_after[2], -1), most) k;
    if cardinality(group_ids) = most then
        came_to := array[group_ids[most], partition_ids[most]];
    end if;
    return query
    with ends as materialized (
        select f.partition_id, f.log_start_offset, f.last_stable_offset
        from (select coalesce(array_agg(distinct u.id), '{}') as ids from unnest(partition_ids) u(id)) known
        cross join lateral msgtx.log_ends(known.ids, 'read_committed') f),
    positions as (
        select k.group_id, k.partition_id, greatest(newest.committed_offset, e.log_start_offset) as position,
               e.last_stable_offset
        from unnest(group_ids, partition_ids) k(group_id, partition_id)
        join ends e on e.partition_id = k.partition_id
        cross join lateral msgtx.newest_offset_of(k.group_id, k.partition_id) newest)
    select g.name, t.name, sum(case when unread.base_offset is null then 0
                               else l.last_stable_offset - greatest(unread.base_offset, l.position) end)::bigint,
           max(case when unread.max_timestamp is not null then greatest(now_ms - unread.max_timestamp, 0) end), came_to
    from positions l
    cross join lateral (select g.* from msgtx.consumer_group g where g.group_id = l.group_id limit 1) g
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = l.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    left join lateral msgtx.first_unread_batch(l.partition_id, l.position, l.last_stable_offset, 'read_committed') unread
        on l.position < l.last_stable_offset
    group by g.name, t.name;
    -- nothing of these pairs is left, as of deleted topics; it goes on behind them
    if not found and came_to is not null then
        next_after := came_to;
        return next;
    end if;
end $$;
