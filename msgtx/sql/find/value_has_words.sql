-- value_has_words(value, words) → whether a value is JSON in which a text contains these words whole, or a number is written
-- like them. Null if it is not JSON.
create function msgtx.value_has_words(value bytea, words text) returns boolean language sql immutable strict
return (
    select bool_or(case jsonb_typeof(u.found)
        when 'string' then u.found #>> '{}' ~ (
            '(^|[^[:alnum:]])' || regexp_replace(words, '([^[:alnum:][:space:]])', '\\\1', 'g') || '($|[^[:alnum:]])')
        when 'number' then u.found #>> '{}' = words end)
    from jsonb_path_query(msgtx.value_json(value), 'strict $.**') u(found));
