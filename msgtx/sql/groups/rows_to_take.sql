-- rows_to_take(partition_id, position, most, max_bytes, has_some) → the rows of the log of which a group takes the committed
-- records of a partition next: at most so many records, of so many bytes of keys and values. The first record may be larger,
-- unless the caller has some.
--   counts        of each row, so many records are taken, behind so many others (befores); record_counts: that it has
--   bytes         of keys and values, if these are fewer records than asked for, or more bytes; else null
--   next_offset   behind these records, and behind aborted ones
--   held_back     an overdue transaction does not let readers go further      has_more   these rows have no records to take
-- Reads what fetch_batches does.
-- plan: look-ups
create function msgtx.rows_to_take(
    in_partition_id int, "position" bigint, most bigint, max_bytes bigint, has_some boolean,
    out base_offsets bigint[], out record_counts bigint[], out befores bigint[], out counts bigint[],
    out bytes bigint, out next_offset bigint, out held_back boolean, out has_more boolean
) language plpgsql stable as $$
declare
    rows_at_once constant int := least(1000, greatest(most, 16));
    fitting record;
begin
    select array_agg(r.base_offset) filter (where r.count > 0), array_agg(r.record_count) filter (where r.count > 0),
           array_agg(r.before) filter (where r.count > 0), array_agg(r.count) filter (where r.count > 0),
           1 + coalesce(max(case
               when r.before + r.count < r.record_count
                   then r.base_offset + coalesce(r.offset_deltas[r.before + r.count], r.before + r.count - 1)
               else r.last_offset end), "position" - 1),
           coalesce(bool_or(r.blocked_overdue), false),
           coalesce(sum(r.count) = 0 and max(r.last_offset) >= "position", false)
    into base_offsets, record_counts, befores, counts, next_offset, held_back, has_more
    from (
        select s.*, least(s.record_count - s.before, most - s.ahead) as count
        from (
            select f.base_offset, f.last_offset, f.offset_deltas, f.blocked_overdue, n.record_count, n.before,
                   coalesce(sum(n.record_count - n.before) over (
                       order by f.base_offset rows between unbounded preceding and 1 preceding), 0)::bigint as ahead
            from msgtx.fetch_batches(
                array[in_partition_id], array["position"], array[null::text], 'read_committed', max_bytes, rows_at_once) f
            cross join lateral (
                select case when f.visible is not true then 0
                           else coalesce(cardinality(f.offset_deltas), f.last_offset - f.base_offset + 1) end,
                       case when f.visible is not true then 0
                           when f.offset_deltas is null then greatest("position" - f.base_offset, 0)
                           else (select count(*) from unnest(f.offset_deltas) d where f.base_offset + d < "position") end
                ) n(record_count, before)) s
        where s.ahead < most order by s.base_offset) r;
    -- The bytes count if they may be too many, or if the caller has room for records of another partition.
    if base_offsets is not null and ((select sum(c) from unnest(counts) c) < most or (
        select sum(b.byte_size) from msgtx.record_batch b
        where b.partition_id = in_partition_id
          and b.base_offset between base_offsets[1] and base_offsets[cardinality(base_offsets)]) > max_bytes)
    then
        select array_agg(r.count order by r.place) as counts, max(r.bytes) as bytes, max(r.last_offset) as last_offset
        into fitting
        from (
            select u.place, count(*) filter (where u.fits) as count, max(u.bytes) filter (where u.fits) as bytes,
                   max(u.at_offset) filter (where u.fits) as last_offset
            from (
                select m.*, m.bytes <= max_bytes or m.number = 1 and not has_some as fits
                from (
                    select s.place, case when s.before + v.ordinal = b.record_count then b.last_offset
                               else b.base_offset + coalesce(
                                   b.offset_deltas[s.before + v.ordinal], s.before + v.ordinal - 1) end as at_offset,
                           row_number() over along as number,
                           sum(coalesce(octet_length(v.key), 0)::bigint + coalesce(octet_length(v.value), 0))
                               over along as bytes
                    from unnest(base_offsets, befores, counts) with ordinality s(base_offset, before, count, place)
                    cross join lateral (
                        select b.* from msgtx.record_batch b
                        where b.partition_id = in_partition_id and b.base_offset = s.base_offset limit 1) b
                    cross join lateral unnest(
                        b.keys[s.before + 1:s.before + s.count], b."values"[s.before + 1:s.before + s.count])
                        with ordinality v(key, value, ordinal)
                    window along as (order by s.place, v.ordinal)) m) u
            group by u.place) r;
        bytes := coalesce(fitting.bytes, 0);
        if fitting.counts <> counts then
            counts := fitting.counts;
            next_offset := coalesce(fitting.last_offset + 1, "position");
        end if;
    end if;
end $$;
