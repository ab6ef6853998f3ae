-- fence_plain_producers(after, most) gives plain producers of the log, which have no row and so epoch 0, a row with epoch 1,
-- after a failover; → how many, after looking at `most` producers of partitions.
--   in_after, next_after   where the last call came to: partition, producer id; null: from the start, and: this was the end
-- Reads record_batch, producer_state. Writes producer. Flushed.
-- right: owner
-- plan: look-ups
create function msgtx.fence_plain_producers(
    in_after bigint[] default null, most int default 5000, out fenced int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    known record;
    looked_at int := 0;
    inserted int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    fenced := 0;
    ignored := msgtx.flush_at_commit();
    for known in
        with recursive known(partition_id, producer_id) as (
            (select r.partition_id, r.producer_id from msgtx.record_batch r
             where r.producer_id is not null
               and (r.partition_id, r.producer_id) > (coalesce(in_after[1], -1), coalesce(in_after[2], -1))
             order by r.partition_id, r.producer_id limit 1)
            union all
            select next.partition_id, next.producer_id from known k
            cross join lateral (
                select r.partition_id, r.producer_id from msgtx.record_batch r
                where r.producer_id is not null and (r.partition_id, r.producer_id) > (k.partition_id, k.producer_id)
                order by r.partition_id, r.producer_id limit 1) next)
        select k.partition_id, k.producer_id from known k limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[known.partition_id, known.producer_id];
        insert into msgtx.producer (producer_id, epoch, timeout_ms, initialized_at, shard)
        values (known.producer_id, 1, 60000, msgtx.clock(), msgtx.shard_of(null, known.producer_id))
        on conflict do nothing;
        get diagnostics inserted = row_count;
        fenced := fenced + inserted;
    end loop;
    if looked_at < most then
        next_after := null;
        insert into msgtx.producer (producer_id, epoch, timeout_ms, initialized_at, shard)
        select distinct s.producer_id, 1, 60000, msgtx.clock(), msgtx.shard_of(null, s.producer_id)
        from msgtx.producer_state s
        on conflict do nothing;
        get diagnostics inserted = row_count;
        fenced := fenced + inserted;
    end if;
end $$;
