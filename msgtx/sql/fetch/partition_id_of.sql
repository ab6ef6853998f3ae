-- partition_id_of(topic, partition) → its id; null if there is none, or if the caller may not consume the topic.
-- Reads topic, partition.
-- right: consume
create function msgtx.partition_id_of(in_topic text, in_partition int) returns int language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select p.partition_id from msgtx.topic t
        join msgtx.partition p on p.topic_id = t.topic_id
        where t.name = in_topic and p.partition_index = in_partition
          and coalesce(t.topic_id = any((select msgtx.topics_of_caller('{consume}'))::int[]), true));
end $$;
