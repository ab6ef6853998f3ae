-- setting_value(name) → a limit of the installation, from table setting.
create function msgtx.setting_value(setting_name text) returns bigint language plpgsql stable as $$
begin
    return (select s.value from msgtx.setting s where s.name = setting_name);
end $$;
