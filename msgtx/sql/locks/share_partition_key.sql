-- share_partition_key(group_id, partition_id) → the key of the lock on a share group's state of a partition. Two that
-- have the same hash only wait for each other.
create function msgtx.share_partition_key(in_group_id int, in_partition_id int) returns int language sql immutable
return hashint8(in_group_id::bigint << 32 | in_partition_id);
