-- delete_topic(name) removes a topic and its partitions, at once for all sessions; raises if there is none. An open
-- transaction can still commit its records in other topics. It locks the first 256 partitions, and removes at most 1,000
-- rows of their logs. The client and every sweep call remove_deleted_logs for the rest: so a topic of any size can be
-- deleted, with a lock table of any size. → the number of removed rows. A call in flight may still write to one of the
-- other partitions: it came before the deletion, or is refused after it. Locks the topic's row, so that no partition is
-- added; partitions (exclusive, ascending). Deletes from topic, partition. Writes deleted_partition; installation: members
-- of groups notice by the version of the topics. Deletes through remove_log. Flushed.
-- right: admin
create function msgtx.delete_topic(topic_name text)
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    locked_at_once constant int := 256;
    rows_at_once constant int := 1000;
    deleted_id int;
    gone int[];
    one int;
    removed bigint := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_right_on_topic('admin', topic_name);
    select t.topic_id into deleted_id from msgtx.topic t where t.name = topic_name for update;
    if not found then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', topic_name),
            detail = jsonb_build_object('topic', topic_name);
    end if;
    gone := array(select p.partition_id from msgtx.partition p where p.topic_id = deleted_id order by p.partition_id);
    foreach one in array gone[:locked_at_once] loop
        ignored := msgtx.lock_partition(one);
    end loop;
    ignored := msgtx.flush_at_commit();
    delete from msgtx.partition p where p.topic_id = deleted_id;
    delete from msgtx.topic t where t.topic_id = deleted_id;
    insert into msgtx.deleted_partition (partition_id) select u from unnest(gone) u;
    update msgtx.installation i set topics_version = i.topics_version + 1, topics_changed_at = msgtx.clock();
    foreach one in array gone[:locked_at_once] loop
        exit when removed >= rows_at_once;
        removed := removed + (msgtx.remove_log(one, rows_at_once - removed::int)).removed;
    end loop;
    return removed;
end $$;
