-- insert_topic(name, partitions, settings) creates a topic with its partitions, as create_topic does, whatever the caller's
-- rights. Writes topic (also through write_topic_settings), partition, installation. Flushed.
create function msgtx.insert_topic(topic_name text, partition_count int, settings jsonb)
returns int language plpgsql volatile as $$
declare
    new_id int;
    ignored boolean;
begin
    ignored := msgtx.check_topic_settings(settings);
    if msgtx.is_topic_name(topic_name) is not true then
        raise exception using errcode = 'MX017', message = format(
            'topic name %s is not allowed: use 1 to 249 of a-z A-Z 0-9 . _ - (and not . or ..)', quote_nullable(topic_name)),
            detail = jsonb_build_object('topic', topic_name);
    end if;
    if partition_count is null or partition_count < 1 or partition_count > 100000 then
        raise exception using errcode = 'MX042', message = format(
            'a topic has 1 to 100000 partitions, not %s', coalesce(partition_count::text, 'NULL')),
            detail = jsonb_build_object('topic', topic_name, 'name', 'partition_count', 'given', partition_count,
                                        'limit', 100000);
    end if;
    ignored := msgtx.flush_at_commit();
    insert into msgtx.topic (name) values (topic_name) on conflict do nothing returning topic_id into new_id;
    if new_id is null then
        raise exception using errcode = 'MX036', message = format('topic %s exists', topic_name),
            detail = jsonb_build_object('topic', topic_name);
    end if;
    ignored := msgtx.write_topic_settings(topic_name, settings) is not null;
    insert into msgtx.partition (topic_id, partition_index)
    select new_id, i from generate_series(0, partition_count - 1) i order by i;
    update msgtx.installation i set topics_version = i.topics_version + 1, topics_changed_at = msgtx.clock();
    return new_id;
end $$;
