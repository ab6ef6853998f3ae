-- value_text(value) → a key or value as text; null if it is not UTF-8, or holds a zero byte, which text cannot. Not parallel
-- safe, as value_json.
-- right: consume
create function msgtx.value_text(value bytea) returns text language plpgsql immutable strict
set search_path = pg_catalog, pg_temp as $$
begin
    return convert_from(value, 'UTF8');
exception when data_exception or program_limit_exceeded then
    return null;
end $$;
