-- held_behind(spans, partition, ranges, answers) → offsets of acquired records outside these ranges, behind a released
-- record with the same key: so the same member has them.
create function msgtx.held_behind(
    spans msgtx.share_span[], in_partition_id int, first_offsets bigint[], last_offsets bigint[], answers text[])
returns setof bigint language sql stable set enable_hashjoin = on as $$
    with released as materialized (
        select r.key_hash, min(r.record_offset) as record_offset
        from unnest(first_offsets, last_offsets, answers) a(first_offset, last_offset, answer)
        cross join lateral msgtx.record_places(in_partition_id, a.first_offset, a.last_offset) r
        where a.answer = 'release' and r.key_hash is not null
        group by r.key_hash)
    select h.record_offset
    from unnest(spans) s
    cross join lateral msgtx.record_places(in_partition_id, s.first_offset, s.last_offset) h
    join released r on r.key_hash = h.key_hash and r.record_offset < h.record_offset
    where s.status = 'acquired'
      and not exists (select from unnest(first_offsets, last_offsets) a(first_offset, last_offset)
                      where h.record_offset between a.first_offset and a.last_offset)
$$;
