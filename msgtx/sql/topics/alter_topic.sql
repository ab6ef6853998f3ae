-- alter_topic(name, partitions, settings) changes a topic's settings and adds partitions; raises if there is none.
-- Other settings (null, or absent from the JSON) stay as they are; fewer partitions than there are raise.
-- Locks the topic's row. Writes topic (write_topic_settings), partition, installation (the version that members of groups
-- compare). Flushed.
-- right: admin
create function msgtx.alter_topic(topic_name text, partition_count int default null, settings jsonb default '{}')
returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    altered_id int;
    there int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_right_on_topic('admin', topic_name);
    ignored := msgtx.check_topic_settings(settings);
    ignored := msgtx.flush_at_commit();
    altered_id := msgtx.write_topic_settings(topic_name, settings);
    if altered_id is null then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', topic_name),
            detail = jsonb_build_object('topic', topic_name);
    end if;
    there := (select count(*) from msgtx.partition p where p.topic_id = altered_id);
    if partition_count < there or partition_count > 100000 then
        raise exception using errcode = 'MX042', message = format(
            'topic %s has %s partitions: it can have more, up to 100000, and not %s', topic_name, there, partition_count),
            detail = jsonb_build_object('topic', topic_name, 'name', 'partition_count', 'given', partition_count,
                                        'limit', 100000);
    end if;
    insert into msgtx.partition (topic_id, partition_index)
    select altered_id, i from generate_series(there, partition_count - 1) i order by i;
    update msgtx.installation set topics_version = topics_version + 1, topics_changed_at = msgtx.clock();
    return true;
end $$;
