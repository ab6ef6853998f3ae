-- try_lock_marking() → whether this call may write markers. One lock for the installation; a caller that does not get
-- it does nothing, the holder's round covers it (crosswise ON CONFLICT DO NOTHING deadlocks: P40).
create function msgtx.try_lock_marking() returns boolean language sql volatile
return pg_try_advisory_xact_lock(1836279556, 0);
