-- remove_old_batches(after, most) removes what retention has let go from the fronts of logs, after looking at `most`
-- partitions, at most 1,000 rows and some `most_bytes`; → how many rows, of how many bytes (internals: cleaning#retention).
-- One bad partition does not stop the rest.
-- Locks the leases (share); remove_front passes by partitions that another cleaner has locked. Reads partition, topic,
-- record_batch. Deletes through remove_front. Flushed if a row goes.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.remove_old_batches(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    most_bytes bigint default 33554432, out removed int, out next_after bigint[], out bytes bigint
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    rows_at_once constant int := 1000;  -- in one SQL transaction
    now_at timestamptz := msgtx.clock();
    candidate record;
    front record;
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    bytes := 0;
    ignored := msgtx.require_leases(shards, epochs);
    for candidate in
        select p.partition_id,
               (shards is null or p.partition_id % 50 = any(shards)) and first.last_offset is not null and (
                   first.last_offset < p.log_start_offset
                   or (t.cleanup_policy <> 'compact' and (
                       t.retention_bytes >= 0
                       or msgtx.is_old(first.max_timestamp, first.appended_at, t.retention_ms, now_at)
                       or msgtx.is_dated_ahead(first.max_timestamp, first.appended_at, t.retention_ms,
                           now_at)))) as is_worth_it
        from msgtx.partition p
        cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
        left join lateral (
            select r.last_offset, r.max_timestamp, r.appended_at from msgtx.record_batch r
            where r.partition_id = p.partition_id order by r.base_offset limit 1) first on true
        where p.partition_id > coalesce(in_after[1], -1)
        order by p.partition_id limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[candidate.partition_id];
        if candidate.is_worth_it then
            begin
                front := msgtx.remove_front(candidate.partition_id, rows_at_once - removed, most_bytes - bytes);
                removed := removed + front.removed;
                bytes := bytes + front.bytes;
            exception when others then
                raise warning 'partition % could not be cleaned: %', candidate.partition_id, sqlerrm;
                continue;
            end;
            if front.is_more then  -- also when this call has removed all that it may
                next_after := array[candidate.partition_id - 1];  -- on with this partition
                return;
            end if;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
