-- try_lock_share_partition(group_id, partition_id) → whether that lock was free: members look elsewhere first.
create function msgtx.try_lock_share_partition(in_group_id int, in_partition_id int) returns boolean language sql volatile
return pg_try_advisory_xact_lock(1836279561, msgtx.share_partition_key(in_group_id, in_partition_id));
