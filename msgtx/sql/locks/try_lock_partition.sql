-- try_lock_partition(partition_id) → whether the exclusive lock on a partition was free. Never waits: for the sweep
-- that removes the rest of a deleted topic.
create function msgtx.try_lock_partition(partition_id int) returns boolean language sql volatile
return pg_try_advisory_xact_lock(1836279555, partition_id);
