-- delete_group(name) removes a group with its offsets, also those that wait for a decision; error and detail say why not:
--   GroupNotFound   there is none      GroupNotEmpty   it has members
-- A member of it that comes back is unknown, whatever its generation (P16): member numbers and ids are not given out twice.
-- Locks the group, and the share partitions of a share group (exclusive, ascending). Deletes from group_offset, group_assignment,
-- group_member, consumer_group, share_group, share_state, share_parked. Heartbeats and calls stay for the sweep. Flushed.
create function msgtx.delete_group(group_name text, out error text, out detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' set jit = off set enable_seqscan = off as $$
declare
    gone int;
    partition int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    select g.group_id into gone from msgtx.consumer_group g where g.name = group_name;
    if not found then
        error := 'GroupNotFound';
        detail := format('there is no consumer group %s', group_name);
        return;
    end if;
    detail := msgtx.why_not_empty(group_name, gone);
    if detail is not null then
        error := 'GroupNotEmpty';
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    for partition in
        select s.partition_id from msgtx.share_state s where s.group_id = gone group by s.partition_id
        order by msgtx.share_partition_key(gone, s.partition_id)
    loop
        ignored := msgtx.lock_share_partition(gone, partition);
    end loop;
    delete from msgtx.share_state s where s.group_id = gone;
    delete from msgtx.share_parked s where s.group_id = gone;
    delete from msgtx.share_group s where s.group_id = gone;
    delete from msgtx.group_offset o where o.group_id = gone;
    delete from msgtx.group_assignment a where a.group_id = gone;
    delete from msgtx.group_member m where m.group_id = gone;
    delete from msgtx.consumer_group g where g.group_id = gone;
end $$;
