-- is_running(ends_at, length_ms, moment) → whether something that lasts so long, and ends then, has not ended. One that
-- would have begun further in the future than its length (is_ahead) is over.
create function msgtx.is_running(ends_at timestamptz, length_ms int, moment timestamptz)
returns boolean language sql stable
return ends_at > moment and ends_at <= moment + 2 * length_ms * interval '1 ms';
