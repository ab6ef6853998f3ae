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
        select r.*
        from batch b
        -- Compaction leaves gaps; else a record's offset is its place, and only the records asked for are unpacked.
        cross join lateral msgtx.unpack_records(
            b.base_offset, b.offset_deltas, b.max_timestamp, b.keys, b."values", b.timestamps, b.header_counts,
            b.header_keys, b.header_values,
            case when b.offset_deltas is null then greatest("position" - b.base_offset, 0) else 0 end,
            case when b.offset_deltas is null then most else cardinality(b.offset_deltas) end) r
    ), counted as (
        select r.*, row_number() over along as number,
               sum(coalesce(octet_length(r.key), 0)::bigint + coalesce(octet_length(r.value), 0)) over along as bytes
        from record r where r."offset" >= "position" window along as (order by r."offset")
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
        select count(*) as count, max(f."offset") as last_offset, array_agg(row(
                   topic, partition, f."offset", f."timestamp", f.key, f.value, f.headers)::msgtx.taken_record
                   order by f."offset") as records
        from fitting f) f
    cross join (select count(*) as count from counted) c
    cross join (
        select count(b.base_offset) as rows, coalesce(max(b.last_offset), "position" - 1) as last_offset,
               bool_or(b.blocked_overdue) as blocked_overdue
        from batch b) b;
end $$;
