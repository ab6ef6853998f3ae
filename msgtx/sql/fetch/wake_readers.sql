-- wake_readers(partitions) has waiting consumers of these partitions woken soon after the COMMIT, where no client notifies
-- them: listeners look at the table (woken_since). It does not NOTIFY: PostgreSQL holds one lock over all its databases from
-- there to the end of the COMMIT, flush included, so that commits would wait for each other. Writes wake_up.
create function msgtx.wake_readers(partition_ids int[]) returns boolean language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    if partition_ids <> '{}' then
        insert into msgtx.wake_up (words) values (array_to_string(partition_ids, ','));
        if msgtx.holds_listener_lock(0) then
            perform msgtx.notify_listeners(partition_ids);
        end if;
    end if;
    return true;
end $$;
