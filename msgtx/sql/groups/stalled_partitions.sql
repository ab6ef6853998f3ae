-- stalled_partitions(silence_ms, most) → partitions of consumer groups that stand still, the longest first; `found`: their
-- number. A living member owns the partition, and the group's offset has not moved for silence_ms although a record was
-- there to be read.
--   since      when the offset was committed, or when the first record behind it was appended, if that was later
--   records    from the offset to the last stable offset, as measure_lags counts them
-- Reads consumer_group, group_assignment, group_member, group_heartbeat, group_offset, partition, topic and, through
-- log_ends and first_unread_batch, record_batch and the transaction tables.
-- right: observe of all topics
-- null: client_host, client_process
-- plan: look-ups, nested loops
create function msgtx.stalled_partitions(silence_ms bigint, most int)
returns table (
    group_name text, topic text, partition_index int, committed_offset bigint, since timestamptz, records bigint,
    member_id text, client_host text, client_process int, checked_at timestamptz, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    checked_now constant timestamptz := msgtx.clock();
    silent_since constant timestamptz := checked_now - silence_ms * interval '1 ms';
begin
    return query
    -- The ends of logs are looked up for these partitions alone. Both are in order of the partitions, so nothing is joined:
    -- a member may own 10,000, and each would be compared with each.
    with silent as materialized (
        select a.group_id, a.partition_id, newest.committed_offset, newest.committed_at, m.member_id, m.client_host,
               m.client_process, dense_rank() over (order by a.partition_id) as number
        from msgtx.group_assignment a
        cross join lateral (select m.* from msgtx.group_member m where m.member_number = a.owner limit 1) m
        cross join lateral msgtx.session_of(a.owner, checked_now) s
        cross join lateral msgtx.newest_offset_of(a.group_id, a.partition_id) newest
        cross join lateral (
            select from msgtx.partition p where p.partition_id = a.partition_id limit 1) known
        where not s.is_over and newest.committed_at <= silent_since),
    ends as materialized (
        select array_agg(f.log_start_offset order by f.partition_id) as starts,
               array_agg(f.last_stable_offset order by f.partition_id) as stable
        from (
            select f.* from (select coalesce(array_agg(distinct u.partition_id), '{}') as ids from silent u) known
            cross join lateral msgtx.log_ends(known.ids, 'read_committed') f offset 0) f),
    placed as materialized (
        select u.*, greatest(u.committed_offset, e.starts[u.number]) as position, e.stable[u.number] as last_stable_offset
        from silent u cross join ends e)
    select g.name, t.name, p.partition_index, u.committed_offset, stalled.since,
           u.last_stable_offset - greatest(unread.base_offset, u.committed_offset), u.member_id, u.client_host,
           u.client_process, checked_now, count(*) over ()
    from placed u
    cross join lateral msgtx.first_unread_batch(
        u.partition_id, u.position, u.last_stable_offset, 'read_committed') unread
    cross join lateral (
        select greatest(u.committed_at, b.appended_at) as since from msgtx.record_batch b
        where b.partition_id = u.partition_id and b.base_offset = unread.base_offset limit 1) stalled
    cross join lateral (select g.* from msgtx.consumer_group g where g.group_id = u.group_id limit 1) g
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = u.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where stalled.since <= silent_since
    order by stalled.since, g.name, t.name, p.partition_index
    limit most;
end $$;
