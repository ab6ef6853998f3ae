-- append(batches) stores a set of batches, ascending by partition; one answer per batch, in their order. A refused batch
-- does not undo the others. Repeated, it answers the same with duplicate = true (I1).
--   durable       raise synchronous_commit from off to on (appends outside a transaction with acks=all)
--   timeout_ms    of the transaction that these batches open; null: the producer's
--   wake          tell waiting consumers at COMMIT
-- Locks producers (share, ascending), partitions (exclusive, ascending); inserts the transaction row last: it can wait.
-- Writes record_batch, transaction_partition, transaction.
create function msgtx.append(
    batches msgtx.batch[], durable boolean default true, wake boolean default true, timeout_ms int default null,
    client_host text default null, client_process int default null)
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    b msgtx.batch;
    state msgtx.transaction_status;
    result record;
    locked_id bigint;
    name_before text;
    partition_before int := 0;
    opened_producer_ids bigint[] := '{}';
    opened_epochs int[] := '{}';
    opened_numbers bigint[] := '{}';
    woken text;
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
    foreach b in array batches loop
        if b.partition_id < partition_before then
            raise exception using errcode = 'MX042', message = 'batches must be in ascending order of partition';
        end if;
        partition_before := b.partition_id;
        ignored := msgtx.lock_partition(b.partition_id);
        if b.producer_id is null then
            state := null;
        elsif name_before is distinct from format('%s.%s.%s', b.producer_id, b.producer_epoch, b.transaction_number) then
            name_before := format('%s.%s.%s', b.producer_id, b.producer_epoch, b.transaction_number);
            state := msgtx.transaction_state(b.producer_id, b.producer_epoch, b.transaction_number);
            if state.status = 'new' then
                ignored := msgtx.check_timeout(timeout_ms);
            end if;
        end if;
        result := msgtx.check_batch(b, state);
        if result.error is null and not result.duplicate then
            ignored := msgtx.store_batch(b, result.base_offset, result.appended_at, result.first_here, result.log_append_time);
            if state.status = 'new' then
                opened_producer_ids := opened_producer_ids || b.producer_id;
                opened_epochs := opened_epochs || b.producer_epoch;
                opened_numbers := opened_numbers || b.transaction_number;
            end if;
            if b.transaction_number is null then
                woken := concat_ws(',', woken, b.partition_id);
            end if;
        end if;
        error := result.error;
        detail := result.detail;
        base_offset := result.base_offset;
        appended_at := result.appended_at;
        duplicate := result.duplicate;
        return next;
    end loop;
    if opened_numbers <> '{}' then
        insert into msgtx.transaction (
            producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
            client_host, client_process, database_backend)
        select distinct o.producer_id, o.producer_epoch, o.transaction_number, msgtx.clock(),
               coalesce(timeout_ms, p.timeout_ms), client_host, client_process, pg_backend_pid()
        from unnest(opened_producer_ids, opened_epochs, opened_numbers) o(producer_id, producer_epoch, transaction_number)
        join msgtx.producer p on p.producer_id = o.producer_id
        on conflict do nothing;
    end if;
    if durable and woken is not null then
        ignored := msgtx.flush_at_commit();
    end if;
    if wake and woken is not null then
        perform pg_notify('msgtx', woken);
    end if;
end $$;
