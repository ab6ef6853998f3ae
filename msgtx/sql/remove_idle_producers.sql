-- remove_idle_producers(after, most) removes producer ids that nobody has used for as long as their expiry (semantics 5, I13),
-- after looking at so many; the last call of a pass also removes what retention kept of producers, after
-- producer_id_expiration_ms. One bad row does not stop the rest.
--   in_after, next_after   where the last call came to; null: from the start, and: this was the end
--   shards, epochs         those of a coordinator; null: all
-- Locks the leases (share); tries producers' locks and never waits. Reads transaction, transaction_decision. Deletes from producer,
-- producer_state. Flushed.
create function msgtx.remove_idle_producers(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' set jit = off set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    candidate record;
    kept record;
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    for candidate in
        select p.producer_id, p.shard from msgtx.producer p where p.producer_id > coalesce(in_after[1], -1)
        order by p.producer_id limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[candidate.producer_id];
        if (shards is null or candidate.shard = any(shards)) and msgtx.is_producer_idle(candidate.producer_id) then
            begin
                -- Behind the lock it is looked at again: it may have been used meanwhile.
                if msgtx.try_lock_producer(candidate.producer_id) and msgtx.is_producer_idle(candidate.producer_id) then
                    ignored := msgtx.flush_at_commit();
                    delete from msgtx.producer p where p.producer_id = candidate.producer_id;
                    removed := removed + 1;
                end if;
            exception when others then
                raise warning 'producer % could not be removed: %', candidate.producer_id, sqlerrm;
            end;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
        for kept in
            select s.partition_id, s.producer_id from msgtx.producer_state s
            where s.appended_at < msgtx.clock() - msgtx.setting_value('producer_id_expiration_ms') * interval '1 ms'
              and (shards is null or s.partition_id % 50 = any(shards))
            limit most for update skip locked
        loop
            begin
                delete from msgtx.producer_state s
                where s.partition_id = kept.partition_id and s.producer_id = kept.producer_id;
            exception when others then
                raise warning 'the state of producer % on partition % could not be removed: %',
                    kept.producer_id, kept.partition_id, sqlerrm;
            end;
        end loop;
    end if;
end $$;
