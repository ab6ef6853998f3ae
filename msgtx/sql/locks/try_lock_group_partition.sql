-- try_lock_group_partition(group_id, partition_id) → whether no other SQL transaction takes records of this partition for
-- this group (take). Never waits. Behind the group's lock in the order of locks. The key is that of a share partition: two
-- with the same hash count as one.
create function msgtx.try_lock_group_partition(in_group_id int, in_partition_id int) returns boolean language sql volatile
return pg_try_advisory_xact_lock(1836279562, msgtx.share_partition_key(in_group_id, in_partition_id));
