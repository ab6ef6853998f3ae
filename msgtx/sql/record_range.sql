-- record_range(query_id, batch_id, group, partitions, starts, ends) notes what a streaming query's batch reads, for the sink of
-- the same query, which commits the ends as the group's offsets. Read again after a restart, a batch reads the same; a batch
-- that is committed and now reads something else is of a checkpoint that fell behind: error and detail say so.
-- Reads spark_batch. Writes spark_range. Not flushed by itself: the decision is, and comes later in the WAL.
create function msgtx.record_range(
    in_query_id text, in_batch_id bigint, in_group_name text, partition_ids int[], start_offsets bigint[], end_offsets bigint[],
    out error text, out detail text
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    other record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids);
    end if;
    insert into msgtx.spark_range (
        query_id, batch_id, group_name, partition_id, start_offset, end_offset, recorded_at)
    select in_query_id, in_batch_id, in_group_name, u.partition_id, u.start_offset, u.end_offset, msgtx.clock()
    from unnest(partition_ids, start_offsets, end_offsets) u(partition_id, start_offset, end_offset)
    order by u.partition_id
    on conflict do nothing;
    select r.partition_id, r.start_offset, r.end_offset, u.start_offset as asked_start, u.end_offset as asked_end into other
    from unnest(partition_ids, start_offsets, end_offsets) u(partition_id, start_offset, end_offset)
    join msgtx.spark_range r on r.query_id = in_query_id and r.batch_id = in_batch_id
        and r.group_name = in_group_name and r.partition_id = u.partition_id
    where (r.start_offset, r.end_offset) <> (u.start_offset, u.end_offset)
    order by r.partition_id limit 1;
    if found then
        error := 'BatchConflict';
        detail := format('batch %s of query %s read offsets %s to %s of partition %s, and shall read %s to %s now: the checkpoint'
                         ' fell behind; start with a new one, from the offsets of group %s', in_batch_id, in_query_id,
                         other.start_offset, other.end_offset, other.partition_id, other.asked_start, other.asked_end,
                         in_group_name);
    end if;
end $$;
