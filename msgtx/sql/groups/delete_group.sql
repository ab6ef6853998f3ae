-- delete_group(name) removes a group with its offsets, also those that wait for a decision; error and detail say why not:
--   GroupNotFound   there is none      GroupNotEmpty   it has members
-- A member of it that comes back is unknown, with any generation (P16): member numbers and ids are not given out twice.
-- Locks the group. A share group may have any number of share partitions, and is not waited for: only a member whose
-- session is over can be in the middle of a call, and the sweep of rows without a group removes its rows. Deletes from
-- group_offset, group_assignment, group_member, consumer_group, share_group, share_topic, swept (through forget_swept),
-- share_state, share_parked. Heartbeats and calls stay for the sweep. Flushed.
-- right: admin of all topics
-- plan: look-ups
create function msgtx.delete_group(group_name text, out error text, out detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    gone int;
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
    delete from msgtx.share_state s where s.group_id = gone;
    delete from msgtx.share_parked s where s.group_id = gone;
    delete from msgtx.share_topic s where s.group_id = gone;
    delete from msgtx.share_group s where s.group_id = gone;
    delete from msgtx.group_offset o where o.group_id = gone;
    ignored := msgtx.forget_swept('state', gone, null) and msgtx.forget_swept('offset', gone, null);
    delete from msgtx.group_assignment a where a.group_id = gone;
    delete from msgtx.group_member m where m.group_id = gone;
    delete from msgtx.consumer_group g where g.group_id = gone;
end $$;
