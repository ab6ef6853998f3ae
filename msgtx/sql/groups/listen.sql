-- listen(topic, group) has this session notified of commits to a topic, on a channel that it returns, as LISTEN does; →
-- whether there may be records for a consumer group or share group now. If so, take or receive them. Else wait for a
-- notification, at most about a second. Called again before each wait. True of the first call, whose LISTEN begins with
-- its COMMIT; and if others have the records, or their partitions: then take and receive return none.
-- What makes no commit to the topic notifies nobody: a lock that expires, a delay that is over, an answer in a share group.
-- Waits some milliseconds for commits that are under way without a notification (notify_listeners).
-- Locks as a listener to the topic (share) to the end of the session, and tries such locks. Reads what has_records does.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.listen(topic text, group_name text, out channel text, out has_records boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_variable
declare
    looks constant int := 25;
    seconds constant float := 0.002;  -- between them
    least_seconds constant float := 0.01;  -- if there are records that others have: a caller does not spin
    ignored boolean := msgtx.refuse_stale_snapshot() and (
        msgtx.acts_for_owner() or msgtx.require_right_on_topic('consume', topic)
        and msgtx.require_names('group', array[group_name]));
    found_topic constant int := msgtx.topic_id_of(topic);
    partition_ids int[];
    is_pending boolean;
begin
    channel := 'msgtx_' || found_topic;
    if channel <> all (array(select pg_listening_channels())) then
        execute format('listen %I', channel);
        perform pg_advisory_lock_shared(1836279563, 0), pg_advisory_lock_shared(1836279563, found_topic);
        has_records := true;
        return;
    end if;
    partition_ids := array(select p.partition_id from msgtx.partition p where p.topic_id = found_topic);
    for look in 1 .. looks loop
        is_pending := msgtx.holds_listener_lock(-found_topic);
        has_records := msgtx.has_records(partition_ids, group_name);
        if has_records then
            perform pg_sleep(least_seconds);
        end if;
        exit when has_records or not is_pending;
        perform pg_sleep(seconds);
    end loop;
end $$;
