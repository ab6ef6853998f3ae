-- lock_leases_shared() waits for the shared lock on the coordinators' leases: to the end of the SQL transaction no shard
-- changes hands. Before every other lock.
create function msgtx.lock_leases_shared() returns boolean language sql volatile
return pg_advisory_xact_lock_shared(1836279557, 0) is not null;
