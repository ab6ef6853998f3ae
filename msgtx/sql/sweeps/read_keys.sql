-- read_keys(partition, from, until) → the rows of a log between two offsets, as compaction looks at them: keys and their
-- places. The values stay here: of them it learns which are null (with_tombstones). Rows of which nothing is left are passed
-- over.
--   is_committed        false: of an aborted transaction; its keys are left out. All rows in front of `until` are decided
--   compacted_at        when a pass has first seen it; null also if that lies further in the future than tombstones stay
--   tombstones          positions, from 1, of records without a value      tombstones_expired   their time is up
--   most_rows, most_bytes   of one answer (bytes of whole rows); more only to return one row
-- Reads record_batch, partition, topic and, through is_committed, the transaction tables.
-- right: admin of all topics
-- null: keys[], compacted_at, offset_deltas, tombstones
-- plan: look-ups, nested loops, in order
create function msgtx.read_keys(
    in_partition_id int, from_offset bigint, until_offset bigint, with_tombstones boolean, most_rows int, most_bytes bigint)
returns table (
    base_offset bigint, last_offset bigint, record_count int, is_committed boolean, keys bytea[], offset_deltas int[],
    tombstones int[], tombstones_expired boolean, compacted_at timestamptz, identity text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select w.base_offset, w.last_offset, w.record_count, w.committed, case when w.committed then w.keys end, w.offset_deltas,
           case when w.committed and with_tombstones then array_positions(w."values", null::bytea) end,
           coalesce(extract(epoch from w.now_at - w.compacted_at) * 1000 > w.delete_retention_ms, false),
           case when not msgtx.is_ahead(w.compacted_at, w.delete_retention_ms, w.now_at) then w.compacted_at end,
           msgtx.batch_identity(w.base_offset, w.producer_id, w.producer_epoch, w.base_sequence, w.appended_at)
    from (
        select b.*, c.committed, t.now_at, t.delete_retention_ms,
               coalesce(sum(b.byte_size) over (
                   order by b.base_offset rows between unbounded preceding and 1 preceding), 0) as bytes_before
        from (
            select msgtx.clock() as now_at, t.delete_retention_ms
            from msgtx.partition p
            cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
            where p.partition_id = in_partition_id) t
        cross join lateral (
            select r.* from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset >= from_offset and r.base_offset < until_offset
              and r.record_count > 0
            order by r.base_offset limit most_rows) b
        cross join lateral (
            select b.transaction_number is null or msgtx.is_committed(
                b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number) as committed
            offset 0) c) w
    where w.bytes_before < most_bytes
    order by w.base_offset;
end $$;
