-- expire_overdue(after, most) aborts overdue transactions (I12), after looking at `most` seals (P42), then at as many
-- partitions, then perhaps at as many producers; → how many, at most `most`. One bad row does not stop the rest (P12).
-- A partition is looked at as fetch does it, from its floor; of the transactions there it takes the first 100. If there
-- are more, behind a transaction that is prepared for an outside party for example, the history above the floor may be
-- long. Then open transactions are found among the newest transactions of the producers, one per producer.
--   after   1 and a seal, 2 and a partition and whether one had more, 3 and a producer
--   shards, epochs         those of a coordinator, which ends the transactions of its shards; null: all
-- Locks the leases (share); tries producers' locks and never waits. Updates transaction (seen_at); writes
-- transaction_decision through expire_transaction. Flushed.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.expire_overdue(
    in_after bigint[] default null, most int default 250, shards int[] default null, epochs int[] default null,
    out expired int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    first_ones constant int := 100;  -- of a partition
    place constant bigint[] := coalesce(in_after, array[1, -1, -1, -1]);
    partitions int[];
    is_deep boolean;
    looked_at int;
    producer_ids bigint[];
    producer_epochs int[];
    numbers bigint[];
    last_id bigint;
    overdue record;
    already boolean;
    moment constant timestamptz := msgtx.clock();
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    expired := 0;
    ignored := msgtx.require_leases(shards, epochs);
    if place[1] = 1 then
        select array_agg(s.producer_id), array_agg(s.producer_epoch), array_agg(s.transaction_number)
        into producer_ids, producer_epochs, numbers
        from (
            select s.producer_id, s.producer_epoch, s.transaction_number from msgtx.transaction_seal s
            where (s.producer_id, s.producer_epoch, s.transaction_number) > (place[2], place[3]::int, place[4])
            order by s.producer_id, s.producer_epoch, s.transaction_number limit most) s;
        looked_at := coalesce(cardinality(producer_ids), 0);
        next_after := case when looked_at < most then array[2, -1, 0]
            else array[1, producer_ids[most], producer_epochs[most], numbers[most]] end;
    elsif place[1] = 2 then
        partitions := msgtx.partitions_after(place[2], most);
        looked_at := cardinality(partitions);
        select array_agg(u.producer_id), array_agg(u.producer_epoch), array_agg(u.transaction_number),
               place[3] = 1 or coalesce(bool_or(u.ordinal = first_ones), false)
        into producer_ids, producer_epochs, numbers, is_deep
        from msgtx.unsettled_partitions(null, partitions) p
        cross join lateral (
            select f.*, row_number() over () as ordinal
            from (
                select tp.producer_id, tp.producer_epoch, tp.transaction_number from msgtx.transaction_partition tp
                where tp.partition_id = p.partition_id and tp.first_offset >= p.stable_floor
                order by tp.first_offset limit first_ones) f) u;
        next_after := case when looked_at = most then array[2, partitions[most], is_deep::int] when is_deep
            then array[3, -1] end;
    else
        select array_agg(n.producer_id), array_agg(n.producer_epoch), array_agg(n.transaction_number),
               max(p.producer_id), count(*)
        into producer_ids, producer_epochs, numbers, last_id, looked_at
        from (
            select p.producer_id from msgtx.producer p where p.producer_id > place[2] order by p.producer_id limit most) p
        left join lateral (
            select t.producer_id, t.producer_epoch, t.transaction_number from msgtx.transaction t
            where t.producer_id = p.producer_id
            order by t.producer_epoch desc, t.transaction_number desc limit 1) n on true;
        next_after := case when looked_at = most then array[3, last_id] end;
    end if;

    -- A transaction dated further ahead than its timeout, in a living session: its time counts from here.
    update msgtx.transaction t set seen_at = moment
    from unnest(producer_ids, producer_epochs, numbers) n(producer_id, producer_epoch, transaction_number)
    cross join lateral (
        select o.ctid as place from msgtx.transaction o
        where o.producer_id = n.producer_id and o.producer_epoch = n.producer_epoch
          and o.transaction_number = n.transaction_number and msgtx.is_ahead(o.opened_at, o.timeout_ms, moment)
          and (o.seen_at <= moment) is not true
        limit 1 for no key update skip locked) ahead
    where t.ctid = ahead.place and (shards is null or (
        select p.shard from msgtx.producer p where p.producer_id = t.producer_id) = any(shards));
    for overdue in
        select distinct t.producer_id, t.producer_epoch, t.transaction_number
        from unnest(producer_ids, producer_epochs, numbers) n(producer_id, producer_epoch, transaction_number)
        cross join lateral msgtx.transaction_of(n.producer_id, n.producer_epoch, n.transaction_number) t
        left join lateral msgtx.seal_of(n.producer_id, n.producer_epoch, n.transaction_number) s on true
        where not exists (select from msgtx.decision_of(t.producer_id, t.producer_epoch, t.transaction_number))
          and (msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at)
               or msgtx.is_deserted(t.producer_id, t.producer_epoch, t.transaction_number))
          and s.kind is distinct from 'external'
          and (shards is null or (
              select p.shard from msgtx.producer p where p.producer_id = t.producer_id) = any(shards))
        limit most
    loop
        begin
            -- After the lock: transactions that another sweep has ended in between are not counted here.
            if msgtx.try_lock_producer(overdue.producer_id) then
                -- A statement of its own: it sees what was committed before the lock was there.
                already := exists (
                    select from msgtx.decision_of(overdue.producer_id, overdue.producer_epoch, overdue.transaction_number));
                if not already then
                    expired := expired + msgtx.expire_transaction(
                        overdue.producer_id, overdue.producer_epoch, overdue.transaction_number)::int;
                end if;
            end if;
        exception when others then
            raise warning 'transaction %.%.% could not be expired: %',
                overdue.producer_id, overdue.producer_epoch, overdue.transaction_number, sqlerrm;
        end;
    end loop;
    if expired = most then
        next_after := place;  -- there may be more here
    end if;
end $$;
