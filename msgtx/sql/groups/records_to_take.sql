-- records_to_take(topic, partition, partition_id, position, most, max_bytes, has_some) → the committed records of a
-- partition from a position on: at most so many, of so many bytes of keys and values. The first one may be larger, unless
-- the caller has some.
--   next_offset   behind these records, and behind aborted ones
--   held_back     an overdue transaction does not let readers go further      has_more   all rows looked at were aborted
-- Reads what fetch_batches does.
-- plan: look-ups
create function msgtx.records_to_take(
    topic text, partition int, in_partition_id int, "position" bigint, most bigint, max_bytes bigint, has_some boolean,
    out records msgtx.taken_record[], out next_offset bigint, out held_back boolean, out has_more boolean
) language plpgsql stable as $$
declare
    rows_at_once constant int := least(1000, greatest(most, 16));
begin
    with batch as materialized (
        select f.* from msgtx.fetch_batches(
            array[in_partition_id], array["position"], array[null::text], 'read_committed', max_bytes, rows_at_once) f
    ), record as (
        select b.base_offset + coalesce(b.offset_deltas[u.place], s.before + u.place - 1) as at,
               coalesce(u.record_timestamp, b.max_timestamp) as moment, u.key, u.value, u.header_count,
               case when u.header_count > 0 then coalesce((
                   select sum(c) from unnest(b.header_counts[:s.before + u.place - 1]) c), 0)::int end as headers_before,
               b.header_keys, b.header_values
        from batch b
        -- Compaction leaves gaps; else a record's offset is its place, and only the records asked for are unpacked.
        cross join lateral (
            select case when b.offset_deltas is null then greatest("position" - b.base_offset, 0) else 0 end as before,
                   case when b.offset_deltas is null then most else cardinality(b.offset_deltas) end as count) s
        cross join lateral unnest(
            b.keys[s.before + 1:s.before + s.count], b."values"[s.before + 1:s.before + s.count],
            b.timestamps[s.before + 1:s.before + s.count], b.header_counts[s.before + 1:s.before + s.count])
            with ordinality u(key, value, record_timestamp, header_count, place)
    ), counted as (
        select r.*, row_number() over along as number,
               sum(coalesce(octet_length(r.key), 0)::bigint + coalesce(octet_length(r.value), 0)) over along as bytes
        from record r where r.at >= "position" window along as (order by r.at)
    ), fitting as (
        select c.* from counted c
        where c.number <= most and (c.bytes <= max_bytes or c.number = 1 and not has_some)
    )
    select coalesce(f.records, '{}'),
           1 + case when f.count < c.count or f.count = most then coalesce(f.last_offset, "position" - 1)
               else b.last_offset end,
           coalesce(b.blocked_overdue, false), b.rows = rows_at_once and c.count = 0
    into records, next_offset, held_back, has_more
    from (
        select count(*) as count, max(f.at) as last_offset, array_agg(row(
                   topic, partition, f.at, 'epoch'::timestamptz + f.moment * interval '1 ms', f.key, f.value,
                   msgtx.header_object(f.header_keys[f.headers_before + 1:f.headers_before + f.header_count],
                                       f.header_values[f.headers_before + 1:f.headers_before + f.header_count])
                   )::msgtx.taken_record order by f.at) as records
        from fitting f) f
    cross join (select count(*) as count from counted) c
    cross join (
        select count(b.base_offset) as rows, coalesce(max(b.last_offset), "position" - 1) as last_offset,
               bool_or(b.blocked_overdue) as blocked_overdue
        from batch b) b;
end $$;
