-- remove_idle_producers(after, most) removes producer ids unused for longer than their expiry (I13). It looks at `most` of
-- them, and at some 5,000 of their transactions and partitions. After the last one it removes the rows kept by retention
-- for producers, after producer_id_expiration_ms, at most 10,000 in a call. One bad row does not stop the rest (internals:
-- producers#when-an-id-expires). Uses that lie further in the future than the expiry are dated anew. An id with more than
-- 1,000 transactions in the history stays until that has gone. Only a producer without transactional id that has raised its
-- epoch is looked for on every partition, some thousand in a call, and behind its lock on all of them at once: it may have
-- written without transactions, and at epoch 0 it needs no row.
--   in_after, next_after   where the last call came to: producer, or producer and how far its partitions were looked at, or
--                          the greatest number there is: retention's rows; null: from the start, and: this was the end
-- Locks the leases (share); tries producers' locks and never waits. Reads transaction, transaction_decision, partition.
-- Deletes from producer, producer_state. Flushed.
-- right: admin of all topics
-- plan: look-ups
create function msgtx.remove_idle_producers(
    in_after bigint[] default null, most int default 250, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    looks_at_once constant int := 5000;
    rows_at_once constant int := 10000;
    the_end constant bigint := 9223372036854775807;
    now_at constant timestamptz := msgtx.clock();
    plain_ms constant bigint := msgtx.setting_value('producer_id_expiration_ms');
    id_ms constant bigint := msgtx.setting_value('transactional_id_expiration_ms');
    unused_since constant timestamptz := now_at - plain_ms * interval '1 ms';
    id_unused_since constant timestamptz := now_at - id_ms * interval '1 ms';
    candidate record;
    kept record;
    looked_at int := 0;
    looks int := 0;
    decisions int;
    partitions int[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    for candidate in
        select p.producer_id, p.transactional_id is null and p.epoch > 0 as writes_outside,
               (shards is null or p.shard = any(shards)) and p.initialized_at
                   not between case when p.transactional_id is null then unused_since else id_unused_since end
                       and now_at + (now_at - case when p.transactional_id is null then unused_since
                           else id_unused_since end) as may_be,
               case when p.transactional_id is null then plain_ms else id_ms end as expiration_ms
        from msgtx.producer p
        where p.producer_id >= coalesce(in_after[1], 0)
          and (in_after[2] is not null or p.producer_id is distinct from in_after[1])
        order by p.producer_id limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[candidate.producer_id];
        continue when candidate.may_be is not true;
        continue when msgtx.date_producer(candidate.producer_id, candidate.expiration_ms, now_at);
        if looks >= looks_at_once then
            next_after := array[candidate.producer_id - 1];
            return;
        end if;
        decisions := (
            select count(*) from (
                select from msgtx.transaction_decision d where d.producer_id = candidate.producer_id limit 1001) d);
        looks := looks + decisions;
        continue when decisions > 1000 or not msgtx.is_producer_idle(candidate.producer_id);
        if candidate.writes_outside then
            partitions := array(
                select q.partition_id from msgtx.partition q
                where q.partition_id > case when candidate.producer_id = in_after[1] then in_after[2] else -1 end
                order by q.partition_id limit greatest(looks_at_once - looks, 1));
            looks := looks + cardinality(partitions);
            continue when msgtx.wrote_since(candidate.producer_id, unused_since, partitions);
            if partitions <> '{}' and looks >= looks_at_once then
                next_after := array[candidate.producer_id, partitions[cardinality(partitions)]];
                return;
            end if;
        end if;
        begin
            continue when not msgtx.try_lock_producer(candidate.producer_id);
            -- After the lock it is looked at again: it may have been used in between, also where an earlier call has
            -- looked.
            if candidate.writes_outside then
                partitions := array(select q.partition_id from msgtx.partition q);
                looks := looks + cardinality(partitions);
                continue when msgtx.wrote_since(candidate.producer_id, unused_since, partitions);
            end if;
            if msgtx.is_producer_idle(candidate.producer_id) then
                ignored := msgtx.flush_at_commit();
                delete from msgtx.producer p where p.producer_id = candidate.producer_id;
                removed := removed + 1;
            end if;
        exception when others then
            raise warning 'producer % could not be removed: %', candidate.producer_id, sqlerrm;
        end;
    end loop;
    if looked_at = most then
        return;
    end if;

    next_after := null;
    looked_at := 0;
    update msgtx.producer_state s set appended_at = now_at
    where s.ctid = any(array(
        select k.ctid from msgtx.producer_state k
        where k.appended_at > now_at + plain_ms * interval '1 ms' and (shards is null or k.partition_id % 50 = any(shards))
        order by k.appended_at limit rows_at_once for update skip locked));
    for kept in
        select s.partition_id, s.producer_id from msgtx.producer_state s
        where s.appended_at < unused_since and (shards is null or s.partition_id % 50 = any(shards))
        order by s.appended_at limit rows_at_once for update skip locked
    loop
        looked_at := looked_at + 1;
        begin
            delete from msgtx.producer_state s
            where s.partition_id = kept.partition_id and s.producer_id = kept.producer_id;
        exception when others then
            raise warning 'the state of producer % on partition % could not be removed: %',
                kept.producer_id, kept.partition_id, sqlerrm;
        end;
    end loop;
    if looked_at = rows_at_once then
        next_after := array[the_end];
    end if;
end $$;
