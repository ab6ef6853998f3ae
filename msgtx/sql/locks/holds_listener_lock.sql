-- holds_listener_lock(key) → whether a session holds this lock of listeners in share mode. The key is the id of a topic to
-- which the session listens (listen), 0 for any topic, or minus the id of a topic to which it commits, perhaps without a
-- notification (notify_listeners). It tries the lock exclusively and releases it in the same expression, within a
-- microsecond: two that look at the same moment may each take the other for a listener. Never waits.
create function msgtx.holds_listener_lock(key int) returns boolean language sql volatile
return case when pg_try_advisory_lock(1836279563, key) then not pg_advisory_unlock(1836279563, key) else true end;
