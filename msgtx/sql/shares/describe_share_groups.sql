-- describe_share_groups(names) → share groups by name, null: all that view share_groups shows the caller; one row for each
-- visible partition of which a group knows something, at least one row for each group. 42501 for a named group that the
-- caller may neither use nor observe. Counts are of offsets, as they are now (current_spans).
--   start_offset   the first one that is not done
--   lag            records in flight or parked, and the readable records behind them; lag_ms: the age of the first one
--   parked         delayed, or waiting for their key
--   sees_letters   the caller may consume or observe the topic of its dead letters
-- Reads consumer_group, share_group, group_member, share_state, share_parked, partition and, through fetch_batches,
-- count_records and first_records, the log.
-- right: consume, observe
-- null: partition_id, start_offset, next_offset, available, acquired, pending, rejected, lag, parked, lag_ms
-- plan: look-ups
create function msgtx.describe_share_groups(names text[] default null)
returns table (
    group_name text, settings jsonb, members int, partition_id int, start_offset bigint, next_offset bigint,
    available bigint, acquired bigint, pending bigint, rejected bigint, lag bigint, parked bigint, lag_ms bigint,
    sees_letters boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment timestamptz := msgtx.clock();
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    patterns constant text[] := msgtx.patterns_of_caller('{consume,observe}');
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_sight_of_groups(names);
    return query
    select c.name, g.settings, g.members, n.partition_id, coalesce(least(f.start_offset, w.start_offset), n.next_offset),
           n.next_offset, f.available, f.acquired, f.pending, f.rejected, l.lag, w.parked, case when l.lag > 0 then (
               select r.age_ms from msgtx.first_records(
                   array[n.partition_id], array[coalesce(least(f.start_offset, w.start_offset), n.next_offset)]) r) end,
           coalesce(msgtx.dead_letter_topic_of(c.name) like any(patterns), true)
    from msgtx.share_group s
    cross join lateral (select c.* from msgtx.consumer_group c where c.group_id = s.group_id limit 1) c
    -- once for a group, not for each of its partitions; ends: up to where it may read, by their numbers
    cross join lateral (
        select to_jsonb(s) - '{group_id,writes_dead_letters,longest_lock_ms}'::text[]
            || jsonb_build_object('dead_letter_topic', msgtx.dead_letter_topic_of(c.name)) as settings,
               (select count(*)::int from msgtx.living_members(s.group_id)) as members,
               array(select e.readable_end from msgtx.log_ends(k.ids, s.isolation) e order by e.partition_id) as ends
        from (select coalesce(array_agg(p.partition_id), '{}') as ids
              from msgtx.newest_share_states(s.group_id) v
              cross join lateral (select p.* from msgtx.partition p where p.partition_id = v.partition_id limit 1) p
              where coalesce(p.topic_id = any(visible), true)) k
        offset 0) g
    left join lateral (
        select v.partition_id, v.next_offset, v.spans, p.log_start_offset,
            row_number() over (order by v.partition_id) as number
        from msgtx.newest_share_states(s.group_id) v
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = v.partition_id limit 1) p
        where coalesce(p.topic_id = any(visible), true)) n on true
    left join lateral (
        select msgtx.current_spans(s, n.partition_id, n.spans, n.log_start_offset, moment) as spans offset 0) now
            on n.partition_id is not null
    left join lateral msgtx.counts_of_spans(now.spans, s.delivery_count_limit) f on n.partition_id is not null
    left join lateral (
        select min(greatest(p.first_offset, n.log_start_offset)) as start_offset,
               coalesce(sum(p.last_offset - greatest(p.first_offset, n.log_start_offset) + 1), 0)::bigint as parked
        from msgtx.share_parked p
        where p.group_id = s.group_id and p.partition_id = n.partition_id and p.last_offset >= n.log_start_offset
        ) w on n.partition_id is not null
    left join lateral (
        select f.available + f.acquired + f.pending + f.rejected + w.parked
               + case when n.next_offset < g.ends[n.number] then (
                   select r.records from msgtx.count_records(array[n.partition_id], array[n.next_offset], s.isolation) r)
                   else 0 end as lag) l on n.partition_id is not null
    where c.name = any(names)
       or names is null and (msgtx.acts_for_owner() or c.name in (select v.name from msgtx.share_groups v))
    order by c.name, n.partition_id;
end $$;
