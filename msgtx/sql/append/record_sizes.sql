-- record_sizes(b) → the size of each record of a batch, as max_message_bytes counts it: key, value, header keys and header
-- values. Of msgtx's own headers only the bytes beyond 8 KiB count, so a dead letter fits wherever its record fits.
create function msgtx.record_sizes(b msgtx.batch) returns table (ordinal bigint, record_bytes bigint)
language plpgsql stable as $$
begin
    return query
    select u.ordinal,
           coalesce(octet_length(u.record_key), 0)::bigint + coalesce(octet_length(u.record_value), 0)
           + coalesce((
               select sum(octet_length(h.header_key) + coalesce(octet_length(h.header_value), 0))
                      - least(8192, coalesce(sum(octet_length(h.header_key) + coalesce(octet_length(h.header_value), 0))
                                             filter (where starts_with(h.header_key, 'msgtx.')), 0))
               from unnest(b.header_keys, b.header_values) with ordinality h(header_key, header_value, header_ordinal)
               where h.header_ordinal > u.headers_before and h.header_ordinal <= u.headers_before + u.header_count), 0)
    from (
        select c.*, coalesce(sum(c.header_count) over (order by c.ordinal) - c.header_count, 0) as headers_before
        from unnest(b.keys, b."values", b.header_counts) with ordinality c(record_key, record_value, header_count, ordinal)
    ) u;
end $$;
