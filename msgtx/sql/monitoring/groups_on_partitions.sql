-- groups_on_partitions(partitions, pairs) → how far each group and share group is on partitions where it has begun. Groups
-- that the caller may use, or all on topics that it may observe. About so many pairs of group and partition are looked at,
-- the first partitions first; `searched` is how many partitions that were. A row without a group tells nothing else. A share
-- group's place in its topic of dead letters is left out.
--   at        of a group its committed offset, of a share group the first offset that is not done
--   next_offset   of a share group: the next one to acquire for the first time
--   records, age_ms   as measure_lags and share_progress count them
-- Reads consumer_group, share_group, partition and what newest_offset_of, first_unread_batch and share_progress do.
-- right: consume, observe
-- null: partition_id, group_name, is_share_group, at, next_offset, records, age_ms
-- plan: look-ups, nested loops
create function msgtx.groups_on_partitions(partition_ids int[], pairs int)
returns table (
    partition_id int, group_name text, is_share_group boolean, at bigint, next_offset bigint, records bigint, age_ms bigint,
    searched int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    now_ms constant bigint := (extract(epoch from msgtx.clock()) * 1000)::bigint;
    observed constant int[] := msgtx.topics_of_caller('{observe}');
    sees_all constant boolean := msgtx.may_use('group', null);
    ignored constant boolean := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
    places constant int := least(cardinality(partition_ids), greatest(
        pairs / greatest((select count(*) from msgtx.consumer_group), 1), 1));
begin
    return query
    with ends as materialized (
        select f.partition_id, t.topic_id, t.name as topic, f.log_start_offset, f.last_stable_offset, f.log_end_offset
        from msgtx.log_ends(partition_ids[:places], 'read_committed') f
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = f.partition_id limit 1) p
        cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t)
    select e.partition_id, w.name, w.is_share_group, w.at, w.next_offset, w.records, w.age_ms, places
    from ends e
    cross join lateral (
        select g.name, false as is_share_group, newest.committed_offset as at, null::bigint as next_offset,
               case when unread.base_offset is null then 0
                   else e.last_stable_offset - greatest(unread.base_offset, newest.committed_offset) end as records,
               case when unread.max_timestamp is not null then greatest(now_ms - unread.max_timestamp, 0) end as age_ms
        from msgtx.consumer_group g
        cross join lateral msgtx.newest_offset_of(g.group_id, e.partition_id) newest
        left join lateral msgtx.first_unread_batch(
            e.partition_id, greatest(newest.committed_offset, e.log_start_offset), e.last_stable_offset, 'read_committed')
            unread on newest.committed_offset < e.last_stable_offset
        union all
        select g.name, true, l.start_offset, l.next_offset, l.records, l.age_ms
        from msgtx.share_group s
        cross join lateral (select g.name from msgtx.consumer_group g where g.group_id = s.group_id limit 1) g
        cross join lateral msgtx.share_progress(
            s.group_id, e.partition_id, s.isolation, now_ms, e.log_start_offset, e.last_stable_offset, e.log_end_offset) l
        where e.topic <> msgtx.dead_letter_topic_of(g.name)) w
    where sees_all or coalesce(e.topic_id = any(observed), true) or msgtx.may_use('group', w.name)
    order by e.partition_id, w.at, w.name;
    if not found then
        searched := coalesce(places, 0);
        return next;
    end if;
end $$;
