-- lock_producer(producer_id) waits for the exclusive lock on a producer id, to the end of the SQL transaction.
-- First in the order of locks: producer → group → partition. The key is the low 32 bits of the id: two ids that share
-- a key only wait for each other.
create function msgtx.lock_producer(producer_id bigint) returns boolean language sql volatile
return pg_advisory_xact_lock(1836279553, ((producer_id << 32) >> 32)::int) is not null;
