-- finish_compaction(partition, from, until, tombstones_since) notes that a pass has gone over a whole log: of each key in
-- front of `until` only the newest record is left. → whether it has; not if another pass has been faster, or another cleaner
-- has the partition.
--   in_tombstones_since   when the first of the tombstones that are left was seen; null: there is none
-- Locks the leases (share) and the partition's row. Reads record_batch. Writes partition. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups
create function msgtx.finish_compaction(
    in_partition_id int, from_offset bigint, until_offset bigint, in_tombstones_since timestamptz,
    shards int[] default null, epochs int[] default null)
returns boolean language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s'
as $$
declare
    place record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    select p.counted_offset, p.counted_bytes into place from msgtx.partition p
    where p.partition_id = in_partition_id and p.compacted_offset = from_offset for no key update skip locked;
    if not found then
        return false;
    end if;
    update msgtx.partition p
    set compacted_offset = until_offset, tombstones_since = in_tombstones_since,
        compacted_bytes = place.counted_bytes
            - (select coalesce(sum(r.byte_size), 0) from msgtx.record_batch r
               where r.partition_id = in_partition_id and r.base_offset >= until_offset
                 and r.base_offset < place.counted_offset)
            + (select coalesce(sum(r.byte_size), 0) from msgtx.record_batch r
               where r.partition_id = in_partition_id and r.base_offset >= place.counted_offset
                 and r.base_offset < until_offset)
    where p.partition_id = in_partition_id;
    return true;
end $$;
