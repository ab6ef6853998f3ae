-- is_record_time(timestamp_ms) → whether a record may have this time: in milliseconds since 1970 UTC, and before 9999-01-01,
-- since each reader can represent that in each time zone (internals: append#what-a-record-may-be); null for null.
create function msgtx.is_record_time(timestamp_ms bigint) returns boolean language sql immutable parallel safe
return timestamp_ms >= 0 and timestamp_ms < 253370764800000;
