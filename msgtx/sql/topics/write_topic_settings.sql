-- write_topic_settings(name, settings) changes the settings of a topic that are named and not null; → its id, null if there
-- is no such topic. A topic that takes dead letters of a share group is not compacted (refuse_compacted_letters).
-- Locks the topic's row. Writes topic.
create function msgtx.write_topic_settings(topic_name text, settings jsonb) returns int language plpgsql volatile as $$
declare
    found_id int;
    ignored boolean;
begin
    update msgtx.topic t set
        -- make generate: settings.assigned topic
        (cleanup_policy, retention_ms, retention_bytes, delete_retention_ms, max_message_bytes, timestamp_type) =
        (select g.cleanup_policy, g.retention_ms, g.retention_bytes, g.delete_retention_ms, g.max_message_bytes,
        g.timestamp_type
        -- end
        from jsonb_populate_record(t, jsonb_strip_nulls(settings)) g)
    where t.name = topic_name returning t.topic_id into found_id;
    if found_id is not null and settings ->> 'cleanup_policy' <> 'delete' then
        ignored := msgtx.refuse_compacted_letters(topic_name);
    end if;
    return found_id;
end $$;
