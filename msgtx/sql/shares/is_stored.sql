-- is_stored(partition, first, last) → whether the log has a record at one of these offsets, which are of one row of it:
-- neither retention nor compaction has removed them all. A parked record that is gone is done, and holds no later
-- record with its key back. Reads partition, record_batch.
create function msgtx.is_stored(in_partition_id int, first_offset bigint, last_offset bigint) returns boolean
language sql stable as $$
    select exists (
        select from (
            select b.base_offset, b.offset_deltas, b.last_offset as row_end,
                   greatest(is_stored.first_offset, (
                       select p.log_start_offset from msgtx.partition p where p.partition_id = in_partition_id)) as begins
            from msgtx.record_batch b
            where b.partition_id = in_partition_id and b.base_offset <= is_stored.last_offset
            order by b.base_offset desc limit 1) r
        where case when r.offset_deltas is null then r.begins <= least(is_stored.last_offset, r.row_end)
              else exists (select from unnest(r.offset_deltas) d
                           where r.base_offset + d between r.begins and is_stored.last_offset) end)
$$;
