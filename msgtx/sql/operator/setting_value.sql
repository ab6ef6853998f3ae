-- setting_value(name) → a limit of the installation, from table setting. A larger one counts as a hundred years in
-- milliseconds: with much longer times, sums overflow, in PostgreSQL and in its clients.
create function msgtx.setting_value(setting_name text) returns bigint language plpgsql stable as $$
begin
    return (select least(s.value, 3155760000000) from msgtx.setting s where s.name = setting_name);
end $$;
