-- is_record_time(timestamp_ms) → whether a record may have this time: in milliseconds since 1970 UTC, and before
-- 9999-01-01. Every reader can represent such a time in every time zone (internals: append#what-a-record-may-be). Null for
-- null.
create function msgtx.is_record_time(timestamp_ms bigint) returns boolean language sql immutable parallel safe
return timestamp_ms >= 0 and timestamp_ms < 253370764800000;
