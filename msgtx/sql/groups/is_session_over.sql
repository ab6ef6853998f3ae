-- is_session_over(heartbeat_at, session_timeout_ms, moment) → whether a member's newest heartbeat is further away than its
-- session timeout. Also in the future: a clock was set back, and its age is not known.
create function msgtx.is_session_over(heartbeat_at timestamptz, session_timeout_ms int, moment timestamptz)
returns boolean language sql stable
return heartbeat_at not between moment - session_timeout_ms * interval '1 ms'
    and moment + session_timeout_ms * interval '1 ms';
