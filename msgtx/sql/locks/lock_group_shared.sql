-- lock_group_shared(name) waits for the shared lock on a consumer group. Second in the order of locks; a rebalance
-- takes it exclusively, so that a generation that was checked stays true to the COMMIT. The key is the hash of the
-- name: two groups that share a key only wait for each other.
create function msgtx.lock_group_shared(group_name text) returns boolean language sql volatile
return pg_advisory_xact_lock_shared(1836279554, hashtext(group_name)) is not null;
