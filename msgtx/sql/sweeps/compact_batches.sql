-- compact_batches(partition, rows…) rewrites rows of a log without their superseded records; offsets, sequences and
-- identity are as before. → whether that is done, when, and the bytes of the rows before and after. Nothing is written if
-- another cleaner has the partition or has changed one of these rows, or if the topic is no longer compacted. Rows that
-- retention has just removed are skipped.
--   base_offsets, identities, record_counts   which rows, as they were read
--   stay          per row a bit per record (the lowest of the first byte is the first record); null: none stays
--   waiting       per row 1 if tombstones stay: their time counts from the first pass that has seen them
--   seen          rows that stay whole, with tombstones not seen by earlier passes
-- Locks the leases (share) and the partition's row. Producers are not held up. Reads topic. Writes record_batch, partition.
-- Not flushed by itself: a reader that gets less than before has lost nothing when a crash brings it back.
-- right: admin of all topics
-- commit: asynchronous
-- null: done_at
-- plan: look-ups, nested loops
create function msgtx.compact_batches(
    in_partition_id int, base_offsets bigint[], identities text[], record_counts int[], stay bytea[], waiting int[],
    seen bigint[], shards int[] default null, epochs int[] default null, out done boolean,
    out done_at timestamptz, out bytes bigint
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    place record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    done := false;
    bytes := 0;
    done_at := msgtx.clock();
    ignored := msgtx.require_leases(shards, epochs);
    select p.counted_offset, p.compacted_offset into place
    from msgtx.partition p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where p.partition_id = in_partition_id and t.cleanup_policy like 'compact%' for no key update of p skip locked;
    if not found or exists (
        select from unnest(base_offsets, identities, record_counts) a(base_offset, identity, record_count)
        cross join lateral (
            select r.* from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset = a.base_offset limit 1) r
        where r.record_count <> a.record_count or a.identity <> msgtx.batch_identity(
            r.base_offset, r.producer_id, r.producer_epoch, r.base_sequence, r.appended_at)) then
        return;
    end if;
    update msgtx.record_batch r set compacted_at = done_at
    where r.partition_id = in_partition_id and r.base_offset = any(seen) and (r.compacted_at <= done_at) is not true;

    with made as materialized (
        select r.place, r.byte_size as bytes_before, a.waiting = 1 as waits, left_over.*, headers.*
        from unnest(base_offsets, stay, waiting) a(base_offset, stay, waiting)
        cross join lateral (
            select r.ctid as place, r.* from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset = a.base_offset limit 1) r
        -- A row of which nothing stays is not read.
        left join lateral (
            select r.keys, r."values", r.timestamps, r.header_counts, r.offset_deltas, r.header_keys, r.header_values
            where a.stay is not null) w on true
        cross join lateral (
            select case when r.keys is not null then coalesce(array_agg(u.record_key order by u.ordinal), '{}') end as keys,
                   coalesce(array_agg(u.record_value order by u.ordinal), '{}') as "values",
                   case when r.timestamps is not null then coalesce(array_agg(u.record_timestamp order by u.ordinal), '{}')
                       end as timestamps,
                   case when r.header_counts is not null then coalesce(array_agg(u.header_count order by u.ordinal), '{}')
                       end as header_counts,
                   coalesce(array_agg(coalesce(u.offset_delta, u.ordinal::int - 1) order by u.ordinal), '{}')
                       as offset_deltas
            from unnest(w.keys, w."values", w.timestamps, w.header_counts, w.offset_deltas)
                with ordinality u(record_key, record_value, record_timestamp, header_count, offset_delta, ordinal)
            where get_bit(a.stay, u.ordinal - 1) = 1) left_over
        cross join lateral (
            select case when r.header_keys is not null then coalesce(array_agg(h.header_key order by h.ordinal), '{}') end
                       as header_keys,
                   case when r.header_values is not null then coalesce(array_agg(h.header_value order by h.ordinal), '{}')
                       end as header_values
            from unnest(w.header_keys, w.header_values, array(
                    select c.ordinal from unnest(w.header_counts) with ordinality c(header_count, ordinal)
                    cross join generate_series(1, c.header_count) order by c.ordinal))
                with ordinality h(header_key, header_value, owner, ordinal)
            where get_bit(a.stay, h.owner - 1) = 1) headers),
    changed as (
        update msgtx.record_batch r
        set record_count = cardinality(m."values"), keys = m.keys, "values" = m."values", timestamps = m.timestamps,
            header_counts = m.header_counts, header_keys = m.header_keys, header_values = m.header_values,
            offset_deltas = m.offset_deltas,
            byte_size = msgtx.batch_bytes(m.keys, m."values", m.header_keys, m.header_values),
            compacted_at = case when m.waits then least(r.compacted_at, done_at) end
        from made m
        where r.ctid = m.place
        returning r.base_offset, r.byte_size - m.bytes_before as difference, r.byte_size + m.bytes_before as written),
    counted as (
        update msgtx.partition p
        set counted_bytes = p.counted_bytes + (
                select coalesce(sum(c.difference), 0) from changed c where c.base_offset < p.counted_offset),
            compacted_bytes = p.compacted_bytes + (
                select coalesce(sum(c.difference), 0) from changed c where c.base_offset < p.compacted_offset)
        where p.partition_id = in_partition_id and base_offsets <> '{}')
    select coalesce(sum(c.written), 0) into bytes from changed c;
    done := true;
end $$;
