-- header_bytes(headers) → the bytes of a record's headers, names and values, as record_sizes counts them. Raises if they are
-- not a JSON object of texts and nulls.
create function msgtx.header_bytes(headers jsonb) returns bigint language plpgsql immutable as $$
begin
    if jsonb_typeof(headers) <> 'object' then
        raise exception using errcode = 'MX042', message = format(
            'headers are a JSON object of texts, not of type %s', jsonb_typeof(headers)),
            detail = jsonb_build_object('name', 'headers', 'given', jsonb_typeof(headers));
    end if;
    if jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string" && @.type() != "null")') then
        raise exception using errcode = 'MX042', message = 'the value of a header is a text or null',
            detail = jsonb_build_object('name', 'headers');
    end if;
    return (select coalesce(sum(h.bytes) - least(8192, coalesce(sum(h.bytes) filter (where starts_with(h.key, 'msgtx.')),
        0)), 0)
            from (select e.key, octet_length(e.key) + coalesce(octet_length(convert_to(e.value, 'UTF8')), 0) as bytes
                  from jsonb_each_text(headers) e) h);
end $$;
