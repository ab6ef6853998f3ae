-- describe_lock_table() → PostgreSQL's table of locks: how many places it has for sure (a server with memory to spare has
-- somewhat more), how many are used now by all databases, and how many partitions there are here: what one call may want to
-- lock. Reads partition.
-- right: observe of all topics
create function msgtx.describe_lock_table(out places bigint, out used bigint, out partitions bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    places := current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int);
    used := (select count(*) from pg_locks l where not l.fastpath);
    partitions := (select count(*) from msgtx.partition);
end $$;
