-- append(batches) stores a set of batches, one per partition and ascending; one answer per batch, in their order. A refused
-- batch does not undo the others. Repeated, it answers the same with duplicate = true (I1).
--   durable       raise synchronous_commit from off to on (appends outside a transaction with acks=all)
--   timeout_ms    of the transaction that these batches open; null: the producer's
--   wake          have waiting consumers woken, which no other client notifies
-- Locks producers (share, ascending), partitions (exclusive, ascending); inserts the transaction row last: it can wait.
-- Writes record_batch, transaction_partition, transaction.
-- right: produce
-- null: base_offset, appended_at, duplicate
-- plan: look-ups, in order
create function msgtx.append(
    batches msgtx.batch[], durable boolean default true, wake boolean default true, timeout_ms int default null,
    client_host text default null, client_process int default null)
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    found_batch record;
    locked_id bigint;
    base_offsets bigint[];
    times timestamptz[];
    log_append_time boolean[];
    first_here boolean[];
    stores boolean := false;
    opens boolean := false;
    woken int[];
    repeats boolean := false;
    b msgtx.batch;
    epoch_now int;
    is_undecided boolean;
    place record;
    usual boolean;
    ignored boolean;
begin
    ignored := msgtx.refuse_stale_snapshot();
    if cardinality(batches) = 1 then
        ignored := batches[1].producer_id is null or msgtx.lock_producer_shared(batches[1].producer_id);
    else
        for locked_id in select u.producer_id from unnest(batches) u where u.producer_id is not null
                         group by u.producer_id order by (u.producer_id << 32) >> 32 loop
            ignored := msgtx.lock_producer_shared(locked_id);
        end loop;
    end if;
    ignored := msgtx.lock_partitions(batches);

    -- The usual case is one batch outside a transaction, of a producer that has none open: see usual_place.
    if cardinality(batches) = 1 and batches[1].transaction_number is null then
        b := batches[1];
        select p.epoch into epoch_now from msgtx.producer p where p.producer_id = b.producer_id;
        if epoch_now is not null then  -- a producer without a row has no transactions
            select (select true from msgtx.transaction_decision d
                    where d.producer_id = b.producer_id and d.producer_epoch = t.producer_epoch
                      and d.transaction_number = t.transaction_number limit 1) is null into is_undecided
            from (select t.producer_epoch, t.transaction_number from msgtx.transaction t
                  where t.producer_id = b.producer_id
                  order by t.producer_epoch desc, t.transaction_number desc limit 1) t;
        end if;
        place := msgtx.usual_place(b.partition_id, b.producer_id, b.producer_epoch, b.base_sequence,
                                   msgtx.batch_bytes(b.keys, b."values", b.header_keys, b.header_values));
        usual := place.is_usual and (b.producer_id is null or coalesce(epoch_now, 0) = b.producer_epoch)
            and is_undecided is not true
            and (not place.needs_keys or b.keys is not null and array_position(b.keys, null) is null);
    end if;
    if usual then
        base_offset := place.base_offset;
        appended_at := place.appended_at;
        duplicate := false;
        stores := true;
        base_offsets := array[place.base_offset];
        times := array[place.appended_at];
        log_append_time := array[place.log_append_time];
        woken := array[b.partition_id];
        return next;
    else
        for found_batch in select f.* from msgtx.look_at_batches(batches) f order by f.ordinal loop
            error := null;
            detail := null;
            base_offset := found_batch.base_offset;
            appended_at := found_batch.appended_at;
            duplicate := found_batch.verdict = 'duplicate';
            if found_batch.verdict not in ('store', 'duplicate') then
                select r.error, r.detail into error, detail
                from msgtx.batch_refusal(batches[found_batch.ordinal], found_batch) r;
            end if;
            repeats := repeats or duplicate;
            if error is null and not duplicate then
                stores := true;
                opens := opens or found_batch.status = 'new';
                base_offsets[found_batch.ordinal] := base_offset;
                times[found_batch.ordinal] := appended_at;
                log_append_time[found_batch.ordinal] := found_batch.log_append_time;
                first_here[found_batch.ordinal] := found_batch.first_here;
                if batches[found_batch.ordinal].transaction_number is null then
                    woken := woken || batches[found_batch.ordinal].partition_id;
                end if;
            end if;
            if error is not null then
                base_offset := null;
                appended_at := null;
            end if;
            return next;
        end loop;
        if durable and repeats then  -- the first call's COMMIT may have waited in vain, see flush_log
            ignored := msgtx.flush_log();
        end if;
    end if;

    -- After the look: a topic that is created in between was either not seen by the look, or is seen here.
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{produce}', array(select u.partition_id from unnest(batches) u));
        ignored := msgtx.require_producers(array(select distinct u.producer_id from unnest(batches) u));
    end if;

    if stores then
        ignored := msgtx.store_batches(batches, base_offsets, times, log_append_time, first_here);
    end if;
    if opens then
        ignored := msgtx.open_transactions(batches, base_offsets, timeout_ms, client_host, client_process);
    end if;
    if durable and woken is not null then
        ignored := msgtx.flush_at_commit();
    end if;
    if wake and woken is not null then
        ignored := msgtx.wake_readers(woken);
    end if;
end $$;
