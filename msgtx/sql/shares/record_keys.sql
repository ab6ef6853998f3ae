-- record_keys(partition, first_offsets, last_offsets) → the records of the log in these ranges that have a key, and a hash
-- of it. Ranges do not overlap; those that touch are looked up as one. Reads record_batch.
create function msgtx.record_keys(in_partition_id int, first_offsets bigint[], last_offsets bigint[])
returns table (record_offset bigint, key_hash bigint) language plpgsql stable set enable_sort = on set jit = off as $$
#variable_conflict use_column
begin
    return query
    select o.record_offset, msgtx.key_hash(u.key)
    from (
        select min(a.first_offset), max(a.last_offset)
        from (select a.first_offset, a.last_offset,
                     a.last_offset - sum(a.last_offset - a.first_offset + 1) over (order by a.first_offset) as gaps_before
              from unnest(first_offsets, last_offsets) a(first_offset, last_offset)) a
        group by a.gaps_before) r(first_offset, last_offset)
    cross join lateral msgtx.rows_between(in_partition_id, r.first_offset, r.last_offset) b
    cross join lateral rows from (
        unnest(case when b.offset_deltas is null
               then b.keys[r.first_offset - b.base_offset + 1:r.last_offset - b.base_offset + 1] else b.keys end),
        unnest(b.offset_deltas)) with ordinality u(key, delta, at)
    cross join lateral (
        select coalesce(b.base_offset + u.delta, greatest(b.base_offset, r.first_offset) + u.at - 1)) o(record_offset)
    where u.key is not null and o.record_offset between r.first_offset and r.last_offset;
end $$;
