-- value_json(value) → a record's value as jsonb; null if it is not UTF-8, not JSON, or JSON that jsonb cannot hold (\u0000).
-- Not parallel safe: until PostgreSQL 17 a parallel query cannot catch errors. So no view has it as a column, or none would be
-- read in parallel. That it is immutable lets users build an index on what they have copied.
create function msgtx.value_json(value bytea) returns jsonb language plpgsql immutable strict
set search_path = pg_catalog, pg_temp as $$
begin
    return convert_from(value, 'UTF8')::jsonb;
exception when data_exception or program_limit_exceeded then
    return null;
end $$;
