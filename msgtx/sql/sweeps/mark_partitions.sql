-- mark_partitions(after, most) writes missing markers and floors, after looking at `most` partitions: decisions that
-- `mark` has not found by date are found here by place. Without the marking lock it does nothing.
-- Locks the leases (share); tries the marking lock. Reads partition, transaction_partition. Writes partition_floor and
-- transaction_marker through settle. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
create function msgtx.mark_partitions(
    in_after bigint[] default null, most int default 250, shards int[] default null, epochs int[] default null,
    out markers int, out floors int, out next_after bigint[]
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    partitions int[];
    settled record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    markers := 0;
    floors := 0;
    ignored := msgtx.require_leases(shards, epochs);
    if not msgtx.try_lock_marking() then
        return;
    end if;
    partitions := msgtx.partitions_after(coalesce(in_after[1], -1), most);
    if cardinality(partitions) = most then
        next_after := array[partitions[most]];
    end if;
    settled := msgtx.settle(array(select u.partition_id from msgtx.unsettled_partitions(shards, partitions) u));
    markers := settled.markers;
    floors := settled.floors;
end $$;
