-- lock_partition(partition_id) waits for the exclusive lock on a partition: the tail of its log is ours to the end of
-- the SQL transaction. Third in the order of locks; several partitions are locked in ascending order.
create function msgtx.lock_partition(partition_id int) returns boolean language sql volatile
return pg_advisory_xact_lock(1836279555, partition_id) is not null;
