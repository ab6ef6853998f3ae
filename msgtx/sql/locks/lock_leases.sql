-- lock_leases() waits for the exclusive lock on the coordinators' leases: a shard changes hands while nothing acts for it.
-- Before every other lock.
create function msgtx.lock_leases() returns boolean language sql volatile
return pg_advisory_xact_lock(1836279557, 0) is not null;
