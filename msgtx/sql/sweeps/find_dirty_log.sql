-- find_dirty_log(after, most, min_dirty_ratio) → the next partition of a compacted topic that is worth a pass, after looking
-- at so many: at least this part of its decided bytes was never compacted, or the time of a tombstone is up, or lies further
-- ahead than it lasts. Its answer is flushed, so that no crash takes back the rows that a pass decides by.
--   compacted_offset, until_offset   between them lie the rows that no pass has compacted, all of them decided
--   partition_id                     null: none is
-- Locks the leases (share) and partitions' rows, passing by those that another cleaner has. Reads partition, topic,
-- record_batch. Writes partition through count_bytes.
-- right: admin of all topics
-- null: partition_id, compacted_offset, until_offset
-- plan: look-ups, nested loops
create function msgtx.find_dirty_log(
    in_after bigint[], most int, min_dirty_ratio float8, shards int[] default null, epochs int[] default null,
    out partition_id int, out compacted_offset bigint, out until_offset bigint, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    now_at timestamptz := msgtx.clock();
    candidate record;
    place record;
    total bigint;
    bound bigint;
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    for candidate in
        select p.partition_id, t.delete_retention_ms,
               (shards is null or p.partition_id % 50 = any(shards)) and (
                   tail.last_offset >= p.compacted_offset
                   or abs(extract(epoch from now_at - p.tombstones_since)) * 1000 > t.delete_retention_ms) as may_be
        from msgtx.partition p
        cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
        left join lateral msgtx.last_row_of(p.partition_id) tail on true
        where t.cleanup_policy like 'compact%' and p.partition_id > coalesce(in_after[1], -1)
        order by p.partition_id limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[candidate.partition_id];
        continue when candidate.may_be is not true;
        select p.compacted_offset, p.tombstones_since into place
        from msgtx.partition p where p.partition_id = candidate.partition_id for no key update skip locked;
        continue when not found;
        bound := msgtx.decided_end(candidate.partition_id);
        -- Rows behind an open transaction, perhaps many, are not read: they count when they are decided.
        total := msgtx.count_bytes(candidate.partition_id, bound);
        if total is null then
            next_after := array[candidate.partition_id - 1];  -- on with this partition
            return;
        end if;
        if abs(extract(epoch from now_at - place.tombstones_since)) * 1000 > candidate.delete_retention_ms
           or (bound > place.compacted_offset and (
               select d.bytes - p.compacted_bytes >= min_dirty_ratio * d.bytes
               from msgtx.partition p
               cross join lateral (  -- retention by size has counted further
                   select total - coalesce(sum(r.byte_size), 0) as bytes from msgtx.record_batch r
                   where r.partition_id = p.partition_id and r.base_offset >= bound and r.base_offset < p.counted_offset) d
               where p.partition_id = candidate.partition_id)) then
            partition_id := candidate.partition_id;
            compacted_offset := place.compacted_offset;
            until_offset := greatest(bound, place.compacted_offset);
            ignored := msgtx.flush_at_commit();
            perform pg_logical_emit_message(true, 'msgtx', '');
            return;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
