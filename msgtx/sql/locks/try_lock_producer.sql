-- try_lock_producer(producer_id) → whether the exclusive lock on a producer id was free. Never waits: for a caller that
-- meets an overdue transaction.
create function msgtx.try_lock_producer(producer_id bigint) returns boolean language sql volatile
return pg_try_advisory_xact_lock(1836279553, ((producer_id << 32) >> 32)::int);
