-- held_behind(spans, partition, ranges, answers) → offsets of acquired records outside these ranges, behind a released
-- record with the same key: so the same member has them. Reads record_batch.
create function msgtx.held_behind(
    spans msgtx.share_span[], in_partition_id int, first_offsets bigint[], last_offsets bigint[], answers text[])
returns setof bigint language plpgsql stable set enable_hashjoin = on as $$
#variable_conflict use_column
begin
    return query
    with released as materialized (
        select r.key_hash, min(r.record_offset) as record_offset
        from (select array_agg(a.first_offset) as firsts, array_agg(a.last_offset) as lasts
              from unnest(first_offsets, last_offsets, answers) a(first_offset, last_offset, answer)
              where a.answer = 'release') a
        cross join lateral msgtx.record_keys(in_partition_id, a.firsts, a.lasts) r
        group by r.key_hash)
    select h.record_offset
    from (select array_agg(s.first_offset) as firsts, array_agg(s.last_offset) as lasts
          from unnest(spans) s
          where s.status = 'acquired' and s.last_offset > (select min(r.record_offset) from released r)) s
    cross join lateral msgtx.record_keys(in_partition_id, s.firsts, s.lasts) h
    join released r on r.key_hash = h.key_hash and r.record_offset < h.record_offset
    where not exists (select from unnest(first_offsets, last_offsets) a(first_offset, last_offset)
                      where h.record_offset between a.first_offset and a.last_offset);
end $$;
