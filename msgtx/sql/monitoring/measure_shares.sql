-- measure_shares(after, most) → how far share groups are, for the next `most` known pairs of group and partition behind
-- `after`; a row per group and topic, with where the look came to (null: the end).
--   in_flight  offsets acquired, pending in a transaction, rejected, or to be delivered again
--   parked     delayed, or waiting for an earlier record with their key; counted in up to 10,000 rows of each partition
--   records    both, and those from the next record for the group to the last one that it may read; aborted ones in between
--              count
--   age_ms     of the oldest batch that is not done, by its newest record; null: there is none
--   members    of the group, that live
-- Records that a session or transaction has just decided may still count. A group's place in its topic of dead letters
-- is left out. At most 100 aborted rows are passed by. Its cost is bounded, however long the logs are. Reads share_state,
-- share_parked, share_group, consumer_group, group_member, partition, topic, record_batch and the transaction tables.
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
    rows_counted constant int := 10000;
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
        cross join lateral msgtx.log_ends(known.ids, 'read_committed') f),
    positions as (
        select k.group_id, k.partition_id, s.isolation, greatest(newest.next_offset, e.log_start_offset) as next_offset,
               case s.isolation when 'read_committed' then e.last_stable_offset else e.log_end_offset end as readable_end,
               flying.offsets as in_flight, parked.offsets as parked,
               case when flying.start_offset is not null or parked.start_offset is not null
                   then greatest(least(flying.start_offset, parked.start_offset), e.log_start_offset) end as start_offset
        from unnest(group_ids, partition_ids) k(group_id, partition_id)
        join ends e on e.partition_id = k.partition_id
        join msgtx.share_group s on s.group_id = k.group_id
        cross join lateral msgtx.share_state_of(k.group_id, k.partition_id) newest
        cross join lateral (
            select min(u.first_offset) as start_offset,
                   coalesce(sum(u.last_offset - greatest(u.first_offset, e.log_start_offset) + 1), 0)::bigint as offsets
            from unnest(newest.spans) u where u.last_offset >= e.log_start_offset) flying
        cross join lateral (
            select min(p.first_offset) as start_offset,
                   coalesce(sum(p.last_offset - greatest(p.first_offset, e.log_start_offset) + 1), 0)::bigint as offsets
            from (select w.first_offset, w.last_offset from msgtx.share_parked w
                  where w.group_id = k.group_id and w.partition_id = k.partition_id
                  order by w.first_offset limit rows_counted) p
            where p.last_offset >= e.log_start_offset) parked)
    select g.name, t.name,
           sum(l.in_flight + l.parked + case when unread.base_offset is null then 0
               else l.readable_end - greatest(unread.base_offset, l.next_offset) end)::bigint,
           sum(l.in_flight)::bigint, sum(l.parked)::bigint,
           max(case when coalesce(oldest.max_timestamp, unread.max_timestamp) is not null
               then greatest(now_ms - coalesce(oldest.max_timestamp, unread.max_timestamp), 0) end),
           max((select count(*)::int from msgtx.living_members(l.group_id))), came_to
    from positions l
    cross join lateral (select g.* from msgtx.consumer_group g where g.group_id = l.group_id limit 1) g
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = l.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    left join lateral msgtx.first_unread_batch(l.partition_id, l.next_offset, l.readable_end, l.isolation) unread
        on l.next_offset < l.readable_end
    left join lateral (
        select r.max_timestamp from msgtx.record_batch r
        where r.partition_id = l.partition_id and r.base_offset <= l.start_offset
        order by r.base_offset desc limit 1) oldest on true
    where t.name <> msgtx.dead_letter_topic_of(g.name)
    group by g.name, t.name;
    -- nothing of these pairs is left, as of deleted topics; it goes on behind them
    if not found and came_to is not null then
        next_after := came_to;
        return next;
    end if;
end $$;
