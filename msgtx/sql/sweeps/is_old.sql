-- is_old(row's times, retention_ms, now) → whether a row is past its retention: by its newest record's timestamp, as in
-- Kafka. A missing time counts as the time of the append, and so does one after it (a clock ahead).
create function msgtx.is_old(max_timestamp bigint, appended_at timestamptz, retention_ms bigint, now_at timestamptz)
returns boolean language sql stable
return retention_ms >= 0 and extract(epoch from now_at) * 1000 - least(
    case when max_timestamp >= 0 then max_timestamp end, extract(epoch from appended_at) * 1000) > retention_ms;
