-- measure_dead_letters(after, most) → the number of dead letters of share groups that were not sent back, for the next
-- `most` groups from the one behind `after`; in each row where the look came to (null: the end). Offsets between where
-- the group is in its topic of dead letters and the end; letters of other groups in the same topic count, too.
-- Reads share_group, consumer_group, share_state, partition, topic and, through fetch_batches, the log's ends.
-- right: observe of all topics
-- null: group_name
-- plan: look-ups, nested loops
create function msgtx.measure_dead_letters(in_after int[] default null, most int default 50)
returns table (group_name text, dead_letters bigint, next_after int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    group_ids constant int[] := array(
        select s.group_id from msgtx.share_group s where s.group_id > coalesce(in_after[1], -1) order by s.group_id
            limit most);
begin
    return query
    with places as materialized (
        select k.group_id, p.partition_id
        from unnest(group_ids) k(group_id)
        join msgtx.consumer_group g on g.group_id = k.group_id
        join msgtx.topic t on t.name = msgtx.dead_letter_topic_of(g.name)
        join msgtx.partition p on p.topic_id = t.topic_id),
    ends as materialized (
        select f.partition_id, f.log_start_offset, f.log_end_offset
        from (select coalesce(array_agg(distinct u.partition_id), '{}') as ids from places u) known
        cross join lateral msgtx.log_ends(known.ids, 'read_uncommitted') f)
    select g.name, coalesce((
               select sum(greatest(e.log_end_offset - greatest(e.log_start_offset, newest.next_offset), 0))
               from places l
               join ends e on e.partition_id = l.partition_id
               left join lateral msgtx.share_state_of(l.group_id, l.partition_id) newest on true
               where l.group_id = k.group_id), 0)::bigint,
           case when cardinality(group_ids) = most then group_ids[most:most] end
    from unnest(group_ids) k(group_id)
    join msgtx.consumer_group g on g.group_id = k.group_id;
end $$;
