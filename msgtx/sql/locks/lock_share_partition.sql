-- lock_share_partition(group_id, partition_id) waits for the exclusive lock on a share group's state of a partition.
-- Behind the partition's own lock in the order of locks; several ascending by key.
create function msgtx.lock_share_partition(in_group_id int, in_partition_id int) returns boolean language sql volatile
return pg_advisory_xact_lock(1836279561, msgtx.share_partition_key(in_group_id, in_partition_id)) is not null;
