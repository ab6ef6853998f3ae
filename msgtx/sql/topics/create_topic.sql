-- create_topic(name, partitions, settings) creates a topic with its partitions, and raises if the name is taken. Settings
-- are the topic's columns as JSON; an unknown one, or one out of range, raises. Members of groups notice by the version of
-- the topics. Writes through insert_topic. Flushed.
-- right: admin
create function msgtx.create_topic(topic_name text, partition_count int, settings jsonb default '{}')
returns int language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_right_on_topic('admin', topic_name);
    return msgtx.insert_topic(topic_name, partition_count, settings);
end $$;
