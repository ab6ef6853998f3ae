-- append_plain(batches) stores a set of batches without a producer, as `append` does, in one statement. Returns false, and stores
-- nothing, if one of them may be refused or has a producer: then `append` says why. Flushed; has waiting consumers woken.
-- For SQL transactions at READ COMMITTED, which the caller has made sure of. Locks partitions (exclusive, ascending).
-- Reads partition, topic. Writes record_batch.
create function msgtx.append_plain(batches msgtx.batch[]) returns boolean
language plpgsql volatile set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.lock_partitions(batches);
    partition_ids int[];
begin
    with look as materialized (
        select b.*, cardinality(b."values") as record_count, s.bytes, t.timestamp_type = 'LogAppendTime' as log_append_time,
               greatest(tail.last_offset + 1, p.log_start_offset) as base_offset,
               greatest(msgtx.clock(), tail.appended_at) as appended_at,
               b.producer_id is null and s.bytes <= t.max_message_bytes
                   and (t.cleanup_policy = 'delete' or (b.keys is not null and array_position(b.keys, null) is null)) as fits
        from unnest(batches) b
        left join msgtx.partition p on p.partition_id = b.partition_id
        left join msgtx.topic t on t.topic_id = p.topic_id
        left join lateral (
            select r.last_offset, r.appended_at from msgtx.record_batch r
            where r.partition_id = b.partition_id order by r.base_offset desc limit 1) tail on true
        cross join lateral (select msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values) offset 0) s(bytes)
    ), stored as (
        insert into msgtx.record_batch (
            partition_id, base_offset, last_offset, appended_at, max_timestamp, record_count, byte_size,
            keys, "values", timestamps, header_counts, header_keys, header_values)
        select l.partition_id, l.base_offset, l.base_offset + l.record_count - 1, l.appended_at,
               case when l.log_append_time then floor(extract(epoch from l.appended_at) * 1000)::bigint
                   else l.max_timestamp end,
               l.record_count, l.bytes, l.keys, l."values", case when not l.log_append_time then l.timestamps end,
               l.header_counts, l.header_keys, l.header_values
        from look l where true = all (select l.fits from look l)
        returning partition_id
    )
    select array_agg(s.partition_id) into partition_ids from stored s;
    if partition_ids is null then
        return false;
    end if;
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{produce}', partition_ids);
    end if;
    ignored := msgtx.flush_at_commit();
    return msgtx.wake_readers(partition_ids);
end $$;
