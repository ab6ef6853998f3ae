-- header_columns(headers) → the columns of a batch for the headers of its records, one JSON object or null for each; nulls
-- if no record has any.
create function msgtx.header_columns(
    headers jsonb[], out counts int[], out keys text[], out "values" bytea[]) language plpgsql immutable as $$
begin
    if headers is not null then
        counts := array(
            select (select count(*) from jsonb_object_keys(r.headers)) from unnest(headers) with ordinality r(headers, place)
            order by r.place);
        select array_agg(h.key order by r.place, h.ordinality),
               array_agg(convert_to(h.value, 'UTF8') order by r.place, h.ordinality)
        into keys, "values"
        from unnest(headers) with ordinality r(headers, place)
        cross join lateral jsonb_each_text(r.headers) with ordinality h;
    end if;
end $$;
