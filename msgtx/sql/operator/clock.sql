-- clock() → the time that rows are stamped with. It reads no setting, so that no client can date its transaction; tests
-- replace the function in their own database.
create function msgtx.clock() returns timestamptz language sql volatile
return clock_timestamp();
