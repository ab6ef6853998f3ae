-- purge_transactions(after, most) removes transactions that are complete and older than transaction_history_ms, after
-- looking at `most` of them and at some 20,000 of their partitions; → how many (internals: transactions#history). It keeps
-- the newest one of each existing producer id, and any other until the floor of each partition is above its last offset
-- there (P29, P37) and its acknowledgements are settled. One bad row does not stop the rest. The history of one that lies
-- further in the future than it lasts begins here.
-- Locks the leases (share); tries the marking lock: no round of markers sees half of a transaction. Reads producer,
-- transaction, transaction_decision, share_pending. Deletes through forget_transactions. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops, in order
create function msgtx.purge_transactions(
    in_after bigint[] default null, most int default 1000, shards int[] default null, epochs int[] default null,
    out purged int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    -- Not before the ids that it could be asked for have expired.
    history_ms constant bigint := greatest(
        msgtx.setting_value('transaction_history_ms'), msgtx.setting_value('transactional_id_expiration_ms'),
        msgtx.setting_value('producer_id_expiration_ms'));
    moment constant timestamptz := msgtx.clock();
    before constant timestamptz := moment - history_ms * interval '1 ms';
    since timestamptz := coalesce('epoch'::timestamptz + in_after[1] * interval '1 microsecond', '-infinity');
    spans_at_once constant int := 20000;
    found int;
    looked_at msgtx.transaction_decision[];
    gone msgtx.transaction_decision[];
    one msgtx.transaction_decision;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    purged := 0;
    ignored := msgtx.require_leases(shards, epochs);
    if not msgtx.try_lock_marking() then
        return;
    end if;
    -- The history of a transaction dated further ahead than its length begins here.
    update msgtx.transaction_decision d set decided_at = moment
    where d.ctid = any(array(
        select a.ctid from (
            (select e.ctid, e.decided_at from msgtx.transaction_decision e
             where e.partitions <> '{}' and e.decided_at > moment + history_ms * interval '1 ms'
             order by e.decided_at limit most)
            union all
            (select e.ctid, e.decided_at from msgtx.transaction_decision e
             where e.partitions = '{}' and e.decided_at > moment + history_ms * interval '1 ms'
             order by e.decided_at limit most)) a));
    looked_at := array(
        select d from (
            (select d from msgtx.transaction_decision d
             where d.partitions <> '{}' and d.decided_at < before and d.decided_at >= since
               and (in_after is null or msgtx.history_position(d) > in_after)
             order by d.decided_at, d.producer_id, d.producer_epoch, d.transaction_number limit most)
            union all
            (select d from msgtx.transaction_decision d
             where d.partitions = '{}' and d.decided_at < before and d.decided_at >= since
               and (in_after is null or msgtx.history_position(d) > in_after)
             order by d.decided_at, d.producer_id, d.producer_epoch, d.transaction_number limit most)) old(d)
        order by msgtx.history_position(d) limit most);
    found := cardinality(looked_at);
    -- Of those on very many partitions it looks at fewer.
    looked_at := looked_at[:(
        select count(*) from (
            select sum(cardinality((looked_at[i]).partitions)) over (order by i)
                - cardinality((looked_at[i]).partitions) as before
            from generate_subscripts(looked_at, 1) i) b
        where b.before < spans_at_once)];
    if cardinality(looked_at) = most or cardinality(looked_at) < found then
        next_after := msgtx.history_position(looked_at[cardinality(looked_at)]);
    end if;

    gone := array(
        select d from unnest(looked_at) d
        left join lateral (
            select p.producer_id, p.shard from msgtx.producer p where p.producer_id = d.producer_id limit 1) p on true
        where (shards is null or coalesce(p.shard, d.producer_id % 50) = any(shards))
          and (p.producer_id is null
               or (select true from msgtx.transaction_decision n
                   where n.producer_id = d.producer_id
                     and (n.producer_epoch, n.transaction_number) > (d.producer_epoch, d.transaction_number) limit 1)
               or (select true from msgtx.transaction n
                   where n.producer_id = d.producer_id
                     and (n.producer_epoch, n.transaction_number) > (d.producer_epoch, d.transaction_number) limit 1))
          and (select true from msgtx.share_pending s
               where s.producer_id = d.producer_id and s.producer_epoch = d.producer_epoch
                 and s.transaction_number = d.transaction_number limit 1) is null
          and msgtx.is_below_floors(d.partitions, d.last_offsets));
    begin
        purged := msgtx.forget_transactions(gone);
    exception when others then
        foreach one in array gone loop
            begin
                purged := purged + msgtx.forget_transactions(array[one]);
            exception when others then
                raise warning 'transaction %.%.% could not be purged: %',
                    one.producer_id, one.producer_epoch, one.transaction_number, sqlerrm;
            end;
        end loop;
    end;
end $$;
