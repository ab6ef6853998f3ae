-- records_at(partitions, first_offsets, last_offsets, max_bytes) → the records of the log in these ranges; nothing for one
-- that has none.
--   one row for each piece of a row of the log with records, ascending; place: its range; offsets is null
--   where each offset from first to last is a record; byte_size: its part of the row's
--   max_bytes   what is behind so many is left to read_records: its columns from offsets on are null; null: nothing is left
--               out
-- Reads record_batch.
create function msgtx.records_at(partition_ids int[], first_offsets bigint[], last_offsets bigint[], max_bytes bigint)
returns table (
    place bigint, record_count int, byte_size bigint, first_offset bigint, last_offset bigint,
    max_timestamp bigint, offsets bigint[],
    keys bytea[], "values" bytea[], timestamps bigint[], header_counts int[], header_keys text[], header_values bytea[])
language plpgsql stable as $$
#variable_conflict use_column
begin
    return query
    select e.place, e.upto - e.before, e.bytes, e.begins, e.ends, e.max_timestamp,
           case when e.is_given and e.offset_deltas is not null
               then array(select e.base_offset + d from unnest(e.offset_deltas[e.before + 1:e.upto]) d) end,
           case when e.is_given and e.is_part then e.keys[e.before + 1:e.upto] when e.is_given then e.keys end,
           case when e.is_given and e.is_part then e."values"[e.before + 1:e.upto] when e.is_given then e."values" end,
           case when e.is_given and e.is_part then e.timestamps[e.before + 1:e.upto] when e.is_given then e.timestamps end,
           case when e.is_given and e.is_part then e.header_counts[e.before + 1:e.upto]
                when e.is_given then e.header_counts end,
           case when e.is_given and e.is_part then e.header_keys[h.before + 1:h.upto] when e.is_given then e.header_keys end,
           case when e.is_given and e.is_part then e.header_values[h.before + 1:h.upto]
                when e.is_given then e.header_values end
    from (
        select u.place, b.*, i.before, i.upto, i.bytes, i.upto - i.before < b.record_count as is_part,
               greatest(b.base_offset, u.first_offset) as begins, least(b.last_offset, u.last_offset) as ends,
               (sum(i.bytes) over (order by u.place, b.base_offset) > max_bytes) is not true as is_given
        from unnest(partition_ids, first_offsets, last_offsets) with ordinality
            u(partition_id, first_offset, last_offset, place)
        cross join lateral msgtx.rows_between(u.partition_id, u.first_offset, u.last_offset) b
        cross join lateral (
            select case when b.offset_deltas is null then greatest(0, u.first_offset - b.base_offset)
                   else (select count(*) from unnest(b.offset_deltas) d where b.base_offset + d < u.first_offset) end::int,
                   case when b.offset_deltas is null then least(b.record_count, u.last_offset - b.base_offset + 1)
                   else (select count(*) from unnest(b.offset_deltas) d where b.base_offset + d <= u.last_offset) end::int
            ) r(before, upto)
        cross join lateral (
            select r.before, r.upto, b.byte_size::bigint * (r.upto - r.before) / b.record_count as bytes) i
        where i.upto > i.before) e
    left join lateral (
        select coalesce((select sum(c) from unnest(e.header_counts[:e.before]) c), 0)::int as before,
               coalesce((select sum(c) from unnest(e.header_counts[:e.upto]) c), 0)::int as upto
        where e.is_part and e.header_counts is not null) h on true
    order by e.place, e.base_offset;
end $$;
