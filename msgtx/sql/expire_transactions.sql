-- expire_transactions(most) aborts overdue transactions, at most so many; → how many. What is undecided is found as fetch
-- finds it, from each partition's floor, and among the seals (P42). One bad row does not stop the rest (P12).
--   shards, epochs   those of a coordinator, which ends the transactions of its shards; null: all
-- Locks the leases (share); tries producers' locks and never waits. Writes transaction_decision. Flushed.
create function msgtx.expire_transactions(most int default 1000, shards int[] default null, epochs int[] default null)
returns int language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s'
set jit = off set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
    overdue record;
    expired int := 0;
    already boolean;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    for overdue in
        select t.producer_id, t.producer_epoch, t.transaction_number
        from (
            select u.producer_id, u.producer_epoch, u.transaction_number
            from msgtx.unsettled_partitions() p
            cross join lateral (
                select tp.producer_id, tp.producer_epoch, tp.transaction_number from msgtx.transaction_partition tp
                where tp.partition_id = p.partition_id and tp.first_offset >= p.stable_floor) u
            union
            select s.producer_id, s.producer_epoch, s.transaction_number from msgtx.transaction_seal s) n
        cross join lateral (
            select t.* from msgtx.transaction t
            where t.producer_id = n.producer_id and t.producer_epoch = n.producer_epoch
              and t.transaction_number = n.transaction_number limit 1) t
        where (select true from msgtx.transaction_decision d where d.producer_id = t.producer_id
               and d.producer_epoch = t.producer_epoch and d.transaction_number = t.transaction_number) is null
          and msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend)
          and (select true from msgtx.transaction_seal s where s.producer_id = t.producer_id and s.kind = 'external'
               and s.producer_epoch = t.producer_epoch and s.transaction_number = t.transaction_number) is null
          and (shards is null or (
              select p.shard from msgtx.producer p where p.producer_id = t.producer_id) = any(shards))
        limit most
    loop
        begin
            -- Behind the lock: what another sweep has ended meanwhile is not counted here.
            if msgtx.try_lock_producer(overdue.producer_id) then
                already := (
                    select true from msgtx.transaction_decision d where d.producer_id = overdue.producer_id
                    and d.producer_epoch = overdue.producer_epoch and d.transaction_number = overdue.transaction_number);
                if already is null then
                    expired := expired + msgtx.expire_transaction(
                        overdue.producer_id, overdue.producer_epoch, overdue.transaction_number)::int;
                end if;
            end if;
        exception when others then
            raise warning 'transaction %.%.% could not be expired: %',
                overdue.producer_id, overdue.producer_epoch, overdue.transaction_number, sqlerrm;
        end;
    end loop;
    return expired;
end $$;
