-- notify_listeners(partitions) has the COMMIT of this SQL transaction notify the sessions that listen to the topics of these
-- partitions (listen). PostgreSQL lets one notifying COMMIT through at a time, in all its databases, flush included. So of
-- the SQL transactions of a topic one notifies. The others that commit meanwhile hold a lock: listen waits for them.
-- A queue of notifications that is half full gets no more: if it were full, the COMMIT would fail.
-- Tries locks of listeners, first in share mode (may commit without a notification), then exclusively (it notifies).
-- Reads partition.
create function msgtx.notify_listeners(partition_ids int[]) returns boolean language plpgsql volatile as $$
declare
    most_used constant float := 0.5;
    found_topic int;
begin
    for found_topic in
        select distinct p.topic_id from unnest(partition_ids) u
        cross join lateral (select p.topic_id from msgtx.partition p where p.partition_id = u limit 1) p
    loop
        if msgtx.holds_listener_lock(found_topic) and pg_notification_queue_usage() < most_used
            -- Without the first lock, which a call of listen tries just now, the notification cannot be left to another.
            and (not pg_try_advisory_xact_lock_shared(1836279563, -found_topic)
                 or pg_try_advisory_xact_lock(1836279564, found_topic)) then
            perform pg_notify('msgtx_' || found_topic, '');
        end if;
    end loop;
    return true;
end $$;
