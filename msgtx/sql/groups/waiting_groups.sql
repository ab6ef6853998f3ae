-- waiting_groups(partitions, stable_ends) → the groups that have read a partition up to where readers stop, and wait there;
-- `since`: from the commit of their offset, or from when the record there was stored, whatever came later. Groups that the
-- caller may use, or all on topics that it may observe. At most 20,000 pairs of group and partition are looked at, the first
-- partitions first; `searched` is how many partitions that were. A row without a group tells nothing else.
-- Reads consumer_group, share_group, share_state, partition, record_batch and what newest_offset_of and
-- first_unread_batch do.
-- right: consume, observe
-- null: partition_id, group_name, is_share_group, since
-- plan: look-ups, nested loops
create function msgtx.waiting_groups(partition_ids int[], stable_ends bigint[])
returns table (partition_id int, group_name text, is_share_group boolean, since timestamptz, searched int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    pairs_at_most constant int := 20000;
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    observed constant int[] := msgtx.topics_of_caller('{observe}');
    places constant int := least(cardinality(partition_ids), greatest(
        pairs_at_most / greatest((select count(*) from msgtx.consumer_group), 1), 1));
begin
    return query
    select x.partition_id, w.name, w.is_share_group, greatest(w.committed_at, b.appended_at), places
    from unnest(partition_ids[:places], stable_ends[:places]) x(partition_id, stable_end)
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = x.partition_id limit 1) p
    left join lateral (
        select b.appended_at from msgtx.record_batch b
        where b.partition_id = x.partition_id and b.base_offset >= x.stable_end order by b.base_offset limit 1) b on true
    cross join lateral (
        select g.name, false as is_share_group, newest.committed_at
        from msgtx.consumer_group g
        cross join lateral msgtx.newest_offset_of(g.group_id, x.partition_id) newest
        left join lateral msgtx.first_unread_batch(
            x.partition_id, greatest(newest.committed_offset, p.log_start_offset), x.stable_end, 'read_committed') unread
            on newest.committed_offset < x.stable_end
        where newest.committed_offset <= x.stable_end and unread.base_offset is null
        union all
        select g.name, true, null
        from msgtx.share_group s
        cross join lateral (select g.name from msgtx.consumer_group g where g.group_id = s.group_id limit 1) g
        cross join lateral (
            select v.next_offset from msgtx.share_state v
            where v.group_id = s.group_id and v.partition_id = x.partition_id order by v.version desc limit 1) v
        where v.next_offset >= x.stable_end) w
    where coalesce(p.topic_id = any(visible), true)
      and (coalesce(p.topic_id = any(observed), true) or msgtx.may_use('group', w.name))
    order by x.partition_id, w.name;
    if not found then
        searched := coalesce(places, 0);
        return next;
    end if;
end $$;
