-- release_time(settings, delivery_count, delay_ms, moment) → from when on a released record is to be delivered again; null:
-- at once. Without a delay of its own it is the group's back-off, twice as long after each delivery. A record that may
-- not be delivered again waits for nothing.
create function msgtx.release_time(settings msgtx.share_group, delivery_count int, delay_ms int, moment timestamptz)
returns timestamptz language sql immutable as $$
    select case when delivery_count < settings.delivery_count_limit
        then moment + nullif(greatest(0, coalesce(delay_ms, least(
        settings.release_backoff_max_ms, settings.release_backoff_ms * 2.0 ^ least(30, delivery_count - 1)))),
            0) * interval '1 ms' end
$$;
