-- wait_for_records(topic, group, timeout) waits until there may be records of a topic for a consumer group or share group →
-- whether there are; false: the time is over. A poll on the server, after 10 ms at first and every 100 ms at last, for
-- programs that cannot LISTEN. Others may have the records, or their partitions: then take and receive return none.
-- Its snapshots are short, but vacuum waits for the call: it takes up to a minute. Reads topic, partition, consumer_group,
-- share_group, record_batch, group_offset, share_state.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.wait_for_records(topic text, group_name text, timeout interval default '10 s') returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    least_seconds constant float := 0.01;  -- also if there are records that others have: a caller does not spin
    most_seconds constant float := 0.1;
    left_seconds float := extract(epoch from timeout);
    seconds float := least_seconds;
    partition_ids int[];
    ignored boolean := msgtx.refuse_stale_snapshot() and (
        msgtx.acts_for_owner() or msgtx.require_right_on_topic('consume', topic)
        and msgtx.require_names('group', array[group_name]));
begin
    if left_seconds between 0 and 60 is not true then
        raise exception using errcode = 'MX042', message = format(
            'msgtx.wait_for_records waits for 0 to 60 seconds, not %s', timeout),
            detail = jsonb_build_object('name', 'timeout', 'given', timeout);
    end if;
    partition_ids := array(select p.partition_id from msgtx.partition p where p.topic_id = msgtx.topic_id_of(topic));
    loop
        seconds := least(seconds, left_seconds);
        perform pg_sleep(seconds);
        left_seconds := left_seconds - seconds;
        if msgtx.has_records(partition_ids, group_name) then
            return true;
        end if;
        if left_seconds <= 0 then
            return false;
        end if;
        seconds := least(2 * seconds, most_seconds);
    end loop;
end $$;
