-- is_ahead(at, length_ms, moment) → whether a stored time lies further in the future than its own length. That cannot
-- be right: a clock was set back, and the age is not known. A lease, session or lock is over then; the age of anything
-- else counts from when a sweep sees it (internals: coordinator#a-clock-that-is-set).
create function msgtx.is_ahead(at timestamptz, length_ms bigint, moment timestamptz)
returns boolean language sql stable
return extract(epoch from at - moment) * 1000 > length_ms;
