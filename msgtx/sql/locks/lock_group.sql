-- lock_group(name) waits for the exclusive lock on a consumer group, to the end of the SQL transaction: for calls that
-- change its membership or its assignment. Second in the order of locks; the key is that of lock_group_shared.
create function msgtx.lock_group(group_name text) returns boolean language sql volatile
return pg_advisory_xact_lock(1836279554, hashtext(group_name)) is not null;
