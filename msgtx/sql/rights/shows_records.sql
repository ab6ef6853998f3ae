-- shows_records(partition) → whether the caller may consume the topic of a partition, and so see what its records hold.
-- Reads partition.
create function msgtx.shows_records(in_partition_id int) returns boolean language sql stable
return coalesce(
    (select p.topic_id from msgtx.partition p where p.partition_id = in_partition_id)
        = any(msgtx.topics_of_caller('{consume}')), true);
