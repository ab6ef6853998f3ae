-- try_lock_group_shared(name) → whether the shared lock on a consumer group was free. Never waits: for transactions that go
-- out together.
create function msgtx.try_lock_group_shared(group_name text) returns boolean language sql volatile
return pg_try_advisory_xact_lock_shared(1836279554, hashtext(group_name));
