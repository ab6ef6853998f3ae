-- value_json(value) → a record's value as jsonb; null if it is not UTF-8 or not JSON, or if jsonb cannot hold it (\u0000).
-- Null also for JSON that common readers refuse: nested 500 levels deep or more, or with a number beyond a double. Not
-- parallel safe: until PostgreSQL 17 a parallel query cannot catch errors. So no view has it as a column, or none would be
-- read in parallel. It is immutable, so that users can build an index on copied records.
-- right: consume
create function msgtx.value_json(value bytea) returns jsonb language plpgsql immutable strict
set search_path = pg_catalog, pg_temp as $$
declare
    json text;
    found jsonb;
begin
    json := convert_from(value, 'UTF8');
    found := json::jsonb;
    -- Such a number has an exponent or many digits, and so many levels have 500 brackets: few values are looked at twice.
    if (json ~ '[0-9][eE][+]?[0-9]{3}|[0-9]{200}'
        and jsonb_path_exists(found, '$.** ? (@.type() == "number" && (@ > 1e308 || @ < -1e308))'))
       or (length(json) >= 1000 and 2 * length(json) - length(replace(json, '[', '')) - length(replace(json, '{', '')) >= 500
           and jsonb_path_exists(found, '$.**{500 to last}'))
    then
        return null;
    end if;
    return found;
exception when data_exception or program_limit_exceeded then
    return null;
end $$;
