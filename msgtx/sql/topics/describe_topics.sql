-- describe_topics(names) → a row per partition of these topics (null: of all), with the topic's settings.
create function msgtx.describe_topics(names text[] default null)
returns table (
    name text, partition_index int, partition_id int, cleanup_policy text, retention_ms bigint, retention_bytes bigint,
    delete_retention_ms bigint, max_message_bytes int, timestamp_type text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select t.name, p.partition_index, p.partition_id, t.cleanup_policy, t.retention_ms, t.retention_bytes,
           t.delete_retention_ms, t.max_message_bytes, t.timestamp_type
    from msgtx.topic t join msgtx.partition p on p.topic_id = t.topic_id
    where (names is null or t.name = any(names))
      and coalesce(t.topic_id = any((select msgtx.topics_of_caller('{produce,consume,admin}'))::int[]), true)
    order by t.name, p.partition_index;
end $$;
