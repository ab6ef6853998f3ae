-- settle_shares(after, most) settles the acknowledgements of transactions in share groups, even where no member asks for
-- records any more. It looks at `most` unsettled ones, aborts overdue transactions (I12), and writes the outcomes of
-- decided ones. Then nothing needs their decisions any more. Delays that began further in the future than they last end
-- (date_parked). One bad row does not stop the rest (P12).
--   settled, expired       how many share partitions, and how many transactions were aborted
-- Locks the leases (share); tries producers' locks and those of share partitions, and never waits. Reads transaction,
-- transaction_decision, transaction_seal. Writes through settle_share_partition share_state, share_parked and dead letters;
-- transaction_decision through expire_transaction. Deletes from share_pending. Flushed.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.settle_shares(
    in_after bigint[] default null, most int default 250, shards int[] default null, epochs int[] default null,
    out settled int, out expired int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    place constant bigint[] := coalesce(in_after, array[-1, -1, -1, -1, -1]);
    waiting record;
    looked_at int := 0;
    letters int := 500;  -- dead letters that a call writes, and their bytes
    letter_bytes bigint := 8388608;
    written record;
    already boolean;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    settled := 0;
    expired := 0;
    ignored := msgtx.require_leases(shards, epochs);
    if in_after is null then
        ignored := msgtx.date_parked(shards, msgtx.clock()) is not null;
    end if;
    for waiting in
        select p.producer_id, p.producer_epoch, p.transaction_number, p.group_id, p.partition_id, d.outcome,
               (t.overdue or msgtx.is_deserted(p.producer_id, p.producer_epoch, p.transaction_number))
               and not exists (
                   select from msgtx.seal_of(p.producer_id, p.producer_epoch, p.transaction_number) s
                   where s.kind = 'external') as overdue
        from msgtx.share_pending p
        left join lateral msgtx.decision_of(p.producer_id, p.producer_epoch, p.transaction_number) d on true
        left join lateral (
            select msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at) as overdue
                from msgtx.transaction_of(p.producer_id, p.producer_epoch, p.transaction_number) t) t on d.outcome is null
        where (p.producer_id, p.producer_epoch, p.transaction_number, p.group_id, p.partition_id)
              > (place[1], place[2]::int, place[3], place[4]::int, place[5]::int)
        order by p.producer_id, p.producer_epoch, p.transaction_number, p.group_id, p.partition_id limit most
    loop
        exit when letters <= 0 or letter_bytes <= 0;
        looked_at := looked_at + 1;
        next_after := array[waiting.producer_id, waiting.producer_epoch, waiting.transaction_number, waiting.group_id,
                            waiting.partition_id];
        continue when shards is not null and waiting.group_id % 50 <> all (shards);
        begin
            -- Behind the lock: what another sweep, or this one for another partition, has ended meanwhile is not counted
            -- here.
            if waiting.outcome is null and waiting.overdue and msgtx.try_lock_producer(waiting.producer_id) then
                already := exists (
                    select from msgtx.decision_of(waiting.producer_id, waiting.producer_epoch, waiting.transaction_number));
                if msgtx.expire_transaction(waiting.producer_id, waiting.producer_epoch, waiting.transaction_number) then
                    waiting.outcome := 'ABORT';
                    expired := expired + (not already)::int;
                end if;
            end if;
            if waiting.outcome is not null and msgtx.try_lock_share_partition(waiting.group_id, waiting.partition_id) then
                ignored := msgtx.flush_at_commit();
                written := msgtx.settle_share_partition(waiting.group_id, waiting.partition_id, letters, letter_bytes);
                letters := letters - written.buried;
                letter_bytes := letter_bytes - written.bytes;
                -- No state names it any more. What is dead and could not be written is for bury_dead_shares, too.
                if not written.is_left or written.buried = 0 then
                    delete from msgtx.share_pending p
                    where p.producer_id = waiting.producer_id and p.producer_epoch = waiting.producer_epoch
                      and p.transaction_number = waiting.transaction_number and p.group_id = waiting.group_id
                      and p.partition_id = waiting.partition_id;
                    settled := settled + 1;
                end if;
            end if;
        exception when others then
            raise warning 'share group % on partition %: transaction %.%.% could not be settled: %', waiting.group_id,
                waiting.partition_id, waiting.producer_id, waiting.producer_epoch, waiting.transaction_number, sqlerrm;
        end;
    end loop;
    if looked_at < most and letters > 0 and letter_bytes > 0 then
        next_after := null;
    end if;
end $$;
