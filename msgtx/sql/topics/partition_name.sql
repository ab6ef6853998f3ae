-- partition_name(partition) → a partition as people name it: orders-0; one that was deleted: partition 7.
-- Reads partition, topic.
create function msgtx.partition_name(in_partition_id int) returns text language sql stable as $$
    select coalesce(
        (select t.name || '-' || p.partition_index from msgtx.partition p
         join msgtx.topic t on t.topic_id = p.topic_id where p.partition_id = in_partition_id),
        'partition ' || in_partition_id)
$$;
