-- record_places(partition, first, last) → the records of the log at these offsets, ascending: a hash of the key (null
-- without a key), and the time from which share groups deliver it (null: at once), from header msgtx.deliver-at; other
-- content has no effect. Reads record_batch.
create function msgtx.record_places(in_partition_id int, first_offset bigint, last_offset bigint)
returns table (record_offset bigint, key_hash bigint, deliver_at timestamptz)
language plpgsql stable
set enable_hashjoin = on set enable_sort = on set jit = off as $$
#variable_conflict use_column
begin
    return query
    select b.base_offset + coalesce(u.delta, u.at - 1), msgtx.key_hash(u.key), h.deliver_at
    from msgtx.rows_between(in_partition_id, record_places.first_offset, record_places.last_offset) b
    cross join lateral (
        select case when b.offset_deltas is null then greatest(1, record_places.first_offset - b.base_offset + 1)
            else 1 end::int,
               case when b.offset_deltas is null then least(b.record_count, record_places.last_offset - b.base_offset + 1)
               else b.record_count end::int) i(begins, ends)
    cross join lateral rows from (
        unnest(b.keys[i.begins:i.ends]), unnest(b.offset_deltas), generate_series(i.begins, i.ends)) u(key, delta, at)
    left join lateral (
        select c.at, min(msgtx.delivery_time(p.value)) as deliver_at
        from (select c.at, row_number() over (order by c.at) as place
              from unnest(b.header_counts) with ordinality c(count, at)
              cross join lateral generate_series(1, c.count)) c
        join unnest(b.header_keys, b.header_values) with ordinality p(key, value, place)
            on p.place = c.place and p.key = 'msgtx.deliver-at'
        where b.header_keys @> '{msgtx.deliver-at}'
        group by c.at) h on h.at = u.at
    where b.base_offset + coalesce(u.delta, u.at - 1) between record_places.first_offset and record_places.last_offset
    order by b.base_offset, u.at;
end $$;
