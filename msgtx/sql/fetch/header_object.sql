-- header_object(keys, values) → a record's headers as a JSON object of texts; null without any. A header's value is null if
-- it has none, or is no text (value_text). Of several headers with one name, the last one counts.
create function msgtx.header_object(header_keys text[], header_values bytea[]) returns jsonb language sql immutable as $$
    select jsonb_object_agg(h.name, msgtx.value_text(h.content) order by h.place)
    from unnest(header_keys, header_values) with ordinality h(name, content, place)
$$;
