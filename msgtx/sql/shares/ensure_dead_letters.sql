-- ensure_dead_letters(group) makes a share group's topic of dead letters, if there is none: one partition, which keeps its
-- records forever; → its name. It takes records that are as large as can be. For a SQL transaction without locks of share
-- partitions, or with tried ones only: another holder may wait for this topic. Reads share_group and the tables of
-- require_dead_letters. Writes topic, partition and installation through insert_topic. Flushed.
-- right: consume
-- plan: look-ups
create function msgtx.ensure_dead_letters(group_name text) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    topic constant text := msgtx.dead_letter_topic_of(group_name);
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name])
        and msgtx.require_dead_letters(array[group_name]);
    if exists (select from msgtx.share_group s
               where s.group_id = (select c.group_id from msgtx.consumer_group c where c.name = group_name))
       and not exists (select from msgtx.topic t where t.name = topic) then
        begin
            ignored := msgtx.insert_topic(topic, 1, '{"retention_ms": -1, "max_message_bytes": 1000000000}') is not null;
        exception when sqlstate 'MX036' then
            null;  -- another member was faster
        end;
    end if;
    return topic;
end $$;
