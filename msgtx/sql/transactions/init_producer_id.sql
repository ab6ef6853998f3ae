-- init_producer_id(transactional_id, timeout_ms, expected…) → producer id and epoch (internals: producers). With a
-- transactional id the epoch rises, and an open transaction of an older epoch is aborted first (I7). Without one, a new id.
-- expected_producer_id, expected_epoch: a running producer raises its own epoch; the same request again gets the same
-- answer. From then on it is the caller's, see require_producers. in_keep_prepared: a transaction prepared for an outside
-- decision stays undecided (KIP-939). Locks the producer (exclusive). Writes producer, transaction_decision, markers if the
-- marking lock is free. Flushed: an id that writes no row writes an empty message to the WAL, else a crash would hand it
-- out again (P41). A transaction id alone would not do: a commit without another write does not wait for a flush, and
-- another session without a commit yet may have drawn the block of numbers.
-- right: produce
create function msgtx.init_producer_id(
    in_transactional_id text default null, in_timeout_ms int default 60000,
    expected_producer_id bigint default null, expected_epoch int default null, in_keep_prepared boolean default false,
    out producer_id bigint, out epoch int
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    current record;
    is_new boolean := false;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if in_transactional_id = '' then
        raise exception using errcode = 'MX042', message = 'a transactional id cannot be empty',
            detail = jsonb_build_object('name', 'transactional_id', 'given', '');
    end if;
    ignored := msgtx.check_timeout(in_timeout_ms);
    ignored := msgtx.flush_at_commit();

    if in_transactional_id is null and expected_producer_id is null then
        producer_id := msgtx.next_producer_id();
        epoch := 0;
        perform pg_logical_emit_message(true, 'msgtx', '');
        return;
    end if;

    if in_transactional_id is not null then
        ignored := msgtx.acts_for_owner() or msgtx.require_names('transactional_id', array[in_transactional_id]);
        select p.producer_id into producer_id from msgtx.producer p where p.transactional_id = in_transactional_id;
        if producer_id is null and expected_producer_id is null then
            insert into msgtx.producer (producer_id, epoch, transactional_id, timeout_ms, initialized_at, shard, role_name)
            values (msgtx.next_producer_id(), 0, in_transactional_id, in_timeout_ms, msgtx.clock(),
                    msgtx.shard_of(in_transactional_id, null), msgtx.caller())
            on conflict do nothing returning msgtx.producer.producer_id into producer_id;
            if producer_id is not null then
                epoch := 0;
                return;
            end if;
            select p.producer_id into producer_id from msgtx.producer p where p.transactional_id = in_transactional_id;
        end if;
        if expected_producer_id is not null and producer_id is null then
            raise exception using errcode = 'MX049', message = format(
                'transactional id %s is not known (any more): it expired', in_transactional_id),
                detail = jsonb_build_object('transactional_id', in_transactional_id);
        end if;
        if expected_producer_id <> producer_id then
            raise exception using errcode = 'MX090', message = format(
                'transactional id %s belongs to producer %s now, not to %s',
                in_transactional_id, producer_id, expected_producer_id),
                detail = jsonb_build_object('transactional_id', in_transactional_id, 'producer_id', producer_id);
        end if;
    else
        producer_id := expected_producer_id;
        ignored := msgtx.acts_for_owner() or msgtx.require_producers(array[producer_id]);
    end if;

    ignored := msgtx.lock_producer(producer_id);
    select p.epoch, p.epoch_before into current from msgtx.producer p where p.producer_id = init_producer_id.producer_id;
    if not found then
        if in_transactional_id is not null then  -- it expired while this call waited for the lock: from the start
            select i.producer_id, i.epoch into producer_id, epoch from msgtx.init_producer_id(
                in_transactional_id, in_timeout_ms, expected_producer_id, expected_epoch, in_keep_prepared) i;
            return;
        end if;
        is_new := true;
        current.epoch := 0;
    end if;
    if expected_epoch is not null and expected_epoch <> current.epoch then
        if expected_epoch = current.epoch_before then
            ignored := msgtx.flush_log();  -- the first call's COMMIT may have waited in vain, see there
            epoch := current.epoch;
            return;
        end if;
        raise exception using errcode = case when expected_epoch > current.epoch then 'MX049' else 'MX090' end,
            message = format('producer %s is at epoch %s, not at %s', producer_id, current.epoch, expected_epoch),
            detail = jsonb_build_object('producer_id', producer_id);
    end if;
    if not (in_keep_prepared and exists (select from msgtx.undecided_prepared(producer_id))) then
        ignored := msgtx.abort_undecided(producer_id, 'fence');
    end if;
    epoch := current.epoch + 1;
    if is_new then
        insert into msgtx.producer (producer_id, epoch, epoch_before, timeout_ms, initialized_at, shard, role_name)
        values (producer_id, epoch, expected_epoch, in_timeout_ms, msgtx.clock(), msgtx.shard_of(null, producer_id),
                msgtx.caller());
    else
        update msgtx.producer p
        set epoch = init_producer_id.epoch, epoch_before = expected_epoch, timeout_ms = in_timeout_ms,
            initialized_at = msgtx.clock(), role_name = msgtx.caller()
        where p.producer_id = init_producer_id.producer_id;
    end if;
end $$;
