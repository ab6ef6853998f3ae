-- try_lock_group(name) → whether the exclusive lock on a consumer group was free. Never waits: for a caller that meets a
-- member with an expired session.
create function msgtx.try_lock_group(group_name text) returns boolean language sql volatile
return pg_try_advisory_xact_lock(1836279554, hashtext(group_name));
