-- delete_topic(name) removes a topic, its partitions and its log at once; raises if there is none. What a transaction that
-- is open now wrote elsewhere can still be committed.
-- Locks partitions (exclusive, ascending). Reads transaction_decision. Deletes from topic, partition, record_batch, producer_state,
-- transaction_partition, transaction_marker, partition_floor, group_offset. Writes installation: members of groups notice by the
-- version of the topics. Flushed.
create function msgtx.delete_topic(topic_name text)
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    gone int[];
    one int;
    batches bigint;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_right_on_topic('admin', topic_name);
    end if;
    select array_agg(p.partition_id order by p.partition_id) into gone
    from msgtx.partition p join msgtx.topic t on t.topic_id = p.topic_id where t.name = topic_name;
    if gone is null then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', topic_name);
    end if;
    foreach one in array gone loop
        ignored := msgtx.lock_partition(one);
    end loop;
    ignored := msgtx.flush_at_commit();
    delete from msgtx.partition p where p.partition_id = any(gone);
    delete from msgtx.topic t where t.name = topic_name;
    delete from msgtx.record_batch r where r.partition_id = any(gone);
    get diagnostics batches = row_count;
    delete from msgtx.producer_state s where s.partition_id = any(gone);
    -- The others tell how far markers are written; they go with their history.
    delete from msgtx.transaction_marker m
    where m.partition_id = any(gone) and not exists (
        select from msgtx.transaction_decision d where d.producer_id = m.producer_id
        and d.producer_epoch = m.producer_epoch and d.transaction_number = m.transaction_number);
    delete from msgtx.partition_floor f where f.partition_id = any(gone);
    delete from msgtx.group_offset o where o.partition_id = any(gone);
    -- Of what is still open they tell where it is to be found.
    delete from msgtx.transaction_partition tp using msgtx.transaction_decision d
    where tp.partition_id = any(gone) and d.producer_id = tp.producer_id and d.producer_epoch = tp.producer_epoch
      and d.transaction_number = tp.transaction_number;
    update msgtx.installation i set topics_version = i.topics_version + 1, topics_changed_at = msgtx.clock();
    return batches;
end $$;
