-- lock_producer_shared(producer_id) waits for the shared lock on a producer id, to the end of the SQL transaction.
-- Appends of one producer run beside each other; decide, init and fence wait for them, and they for those.
create function msgtx.lock_producer_shared(producer_id bigint) returns boolean language sql volatile
return pg_advisory_xact_lock_shared(1836279553, ((producer_id << 32) >> 32)::int) is not null;
