-- remove_deleted_logs(after, most) removes the logs of deleted topics, after looking at `most` partitions, at most
-- 1,000 rows and some `most_bytes` of a log; → how many rows, and the bytes of batches. Nothing reads them any more. A
-- partition that a call of before the deletion still holds is left for later.
-- Locks the leases (share); tries partitions' locks and never waits. Deletes from deleted_partition, and through remove_log.
-- Not flushed by itself.
-- right: admin
-- plan: look-ups
create function msgtx.remove_deleted_logs(
    in_after bigint[] default null, most int default 250, shards int[] default null, epochs int[] default null,
    most_bytes bigint default 33554432, out removed int, out next_after bigint[], out bytes bigint
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    rows_at_once constant int := 1000;  -- in one SQL transaction
    candidate record;
    log record;
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    bytes := 0;
    ignored := msgtx.require_leases(shards, epochs);
    for candidate in
        select d.partition_id from msgtx.deleted_partition d where d.partition_id > coalesce(in_after[1], -1)
        order by d.partition_id limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[candidate.partition_id];
        if (shards is null or candidate.partition_id % 50 = any(shards)) and msgtx.try_lock_partition(candidate.partition_id)
            then
            begin
                log := msgtx.remove_log(candidate.partition_id, rows_at_once - removed, most_bytes - bytes);
                removed := removed + log.removed;
                bytes := bytes + log.bytes;
            exception when others then
                raise warning 'the log of deleted partition % could not be removed: %', candidate.partition_id, sqlerrm;
                continue;
            end;
            if log.is_more then
                next_after := array[candidate.partition_id - 1];  -- on with this partition
                return;
            end if;
            if removed >= rows_at_once or bytes >= most_bytes then
                return;
            end if;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
