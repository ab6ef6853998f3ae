-- lock_spark_app(app_id) waits for the exclusive lock on an application's batches, to the end of the SQL transaction: for
-- the call that decides one. Between the leases and the producers in the order of locks; the key is that of
-- lock_spark_app_shared.
create function msgtx.lock_spark_app(app_id text) returns boolean language sql volatile
return pg_advisory_xact_lock(1836279558, hashtext(app_id)) is not null;
