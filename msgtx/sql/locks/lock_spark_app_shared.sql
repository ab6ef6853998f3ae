-- lock_spark_app_shared(app_id) waits for the shared lock on an application's batches, to the end of the SQL transaction: an
-- attempt registers itself before a decision, and is part of it, or after it, and sees its fence row.
create function msgtx.lock_spark_app_shared(app_id text) returns boolean language sql volatile
return pg_advisory_xact_lock_shared(1836279558, hashtext(app_id)) is not null;
