-- measure_shares(after, most) → how far share groups are (share_progress), for the next `most` known pairs of group and
-- partition behind `after`; a row per group and topic, with where the look came to (null: the end).
--   members    of the group, that live
-- Records that a session or transaction has just decided may still count. A group's place in its topic of dead letters
-- is left out. At most 100 aborted rows are passed by. Its cost is bounded, however long the logs are. Reads share_state,
-- share_group, consumer_group, group_member, partition, topic and what share_progress does.
-- right: observe of all topics
-- null: group_name, topic, records, in_flight, parked, age_ms, members
-- plan: look-ups, nested loops
create function msgtx.measure_shares(in_after int[] default null, most int default 50)
returns table (
    group_name text, topic text, records bigint, in_flight bigint, parked bigint, age_ms bigint, members int,
        next_after int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    now_ms constant bigint := (extract(epoch from msgtx.clock()) * 1000)::bigint;
    group_ids int[];
    partition_ids int[];
    came_to int[];
begin
    select array_agg(k.key_1::int), array_agg(k.key_2::int) into group_ids, partition_ids
    from msgtx.keys_after('state', coalesce(in_after[1], -1), coalesce(in_after[2], -1), most) k;
    if cardinality(group_ids) = most then
        came_to := array[group_ids[most], partition_ids[most]];
    end if;
    return query
    with ends as materialized (
        select f.partition_id, f.log_start_offset, f.last_stable_offset, f.log_end_offset
        from (select coalesce(array_agg(distinct u.id), '{}') as ids from unnest(partition_ids) u(id)) known
        cross join lateral msgtx.log_ends(known.ids, 'read_committed') f)
    select g.name, t.name, sum(l.records)::bigint, sum(l.in_flight)::bigint, sum(l.parked)::bigint, max(l.age_ms),
           max((select count(*)::int from msgtx.living_members(k.group_id))), came_to
    from unnest(group_ids, partition_ids) k(group_id, partition_id)
    join ends e on e.partition_id = k.partition_id
    join msgtx.share_group s on s.group_id = k.group_id
    cross join lateral msgtx.share_progress(
        k.group_id, k.partition_id, s.isolation, now_ms, e.log_start_offset, e.last_stable_offset, e.log_end_offset) l
    cross join lateral (select g.* from msgtx.consumer_group g where g.group_id = k.group_id limit 1) g
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = k.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where t.name <> msgtx.dead_letter_topic_of(g.name)
    group by g.name, t.name;
    -- nothing of these pairs is left, as of deleted topics; it goes on behind them
    if not found and came_to is not null then
        next_after := came_to;
        return next;
    end if;
end $$;
