-- reset_share_offsets(group, partitions, offsets) resets the position of a share group without members: everything from
-- there on is delivered as if for the first time, nothing below it; error and detail say why not: GroupNotFound,
-- GroupNotEmpty, UnknownTopicOrPartition. An offset outside the log is moved to its nearest end. It does not wait for
-- answers pending in open transactions. Locks the group (exclusive), share partitions (exclusive, ascending). Reads
-- partition, record_batch.
-- Writes share_state. Deletes from share_parked. Flushed.
-- right: admin of all topics
-- plan: look-ups
create function msgtx.reset_share_offsets(
    group_name text, partition_ids int[], offsets bigint[], out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    found_id int;
    asked record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    found_id := (
        select s.group_id from msgtx.share_group s
        where s.group_id = (select g.group_id from msgtx.consumer_group g where g.name = group_name));
    if found_id is null then
        error := 'GroupNotFound';
        detail := format('there is no share group %s', group_name);
        return;
    end if;
    detail := msgtx.why_not_empty(group_name, found_id);
    if detail is not null then
        error := 'GroupNotEmpty';
        return;
    end if;
    detail := (
        select format('partition %s does not exist (any more)', u) from unnest(partition_ids) u
        where (select true from msgtx.partition p where p.partition_id = u) is null limit 1);
    if detail is not null then
        error := 'UnknownTopicOrPartition';
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    for asked in
        select u.partition_id, u.at_offset from unnest(partition_ids, offsets) u(partition_id, at_offset)
        order by msgtx.share_partition_key(found_id, u.partition_id)
    loop
        ignored := msgtx.lock_share_partition(found_id, asked.partition_id);
        delete from msgtx.share_parked p where p.group_id = found_id and p.partition_id = asked.partition_id;
        insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)
        select found_id, asked.partition_id,
               1 + coalesce((select s.version from msgtx.share_state_of(found_id, asked.partition_id) s), 0),
               greatest(p.log_start_offset, least(asked.at_offset, coalesce(
                   (select b.last_offset + 1 from msgtx.last_row_of(asked.partition_id) b), p.log_start_offset))), '{}'
        from msgtx.partition p where p.partition_id = asked.partition_id;
    end loop;
end $$;
