-- is_dated_ahead(row's times, retention_ms, now) → whether a row's age is not known: its time, that of is_old, lies further
-- in the future than retention. A clock was set back; rows that are appended behind it have its time, too.
create function msgtx.is_dated_ahead(max_timestamp bigint, appended_at timestamptz, retention_ms bigint, now_at timestamptz)
returns boolean language sql stable
return retention_ms >= 0 and least(
    case when max_timestamp >= 0 then max_timestamp end, extract(epoch from appended_at) * 1000)
    - extract(epoch from now_at) * 1000 > retention_ms;
