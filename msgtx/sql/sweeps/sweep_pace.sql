-- sweep_pace() → the most bytes of logs that a sweeper may remove or rewrite in a second (sweep_max_bytes_per_second).
-- right: admin
create function msgtx.sweep_pace() returns bigint language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
begin
    return msgtx.setting_value('sweep_max_bytes_per_second');
end $$;
