-- refuse_whole(name, batches, …) → the answer of a fused call that cannot simply be stored; no rows if it can be after all.
--   committed already         success, a row per batch with its stored offset
--   the transaction refused   one row with the error alone; so for refused offsets
--   a batch refused           a row per batch, with its error or with the place that it would have had
-- Reads transaction_decision, record_batch and the tables of look_at_batches.
create function msgtx.refuse_whole(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[],
    offsets_error text, offsets_detail text)
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    state record;
    decided record;
    found_batch record;
    b msgtx.batch;
    found_errors text[] := '{}';
    found_details text[] := '{}';
    found_offsets bigint[] := '{}';
    found_times timestamptz[] := '{}';
    refusals int := 0;
    ignored boolean;
begin
    if exists (select from unnest(batches) u where (u.producer_id, u.producer_epoch, u.transaction_number)
               is distinct from (in_producer_id, in_producer_epoch, in_transaction_number)) then
        raise exception using errcode = 'MX042', message = 'the batches of a call that decides must be of its transaction',
            detail = jsonb_build_object('name', 'batches', 'reason', 'transaction');
    end if;
    select s.* into state from msgtx.transaction_state(in_producer_id, in_producer_epoch, in_transaction_number) s;
    duplicate := state.outcome = 'COMMIT';
    if duplicate then
        select d.partitions, d.first_offsets, d.decided_at into decided
        from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number) d;
        foreach b in array batches loop
            base_offset := decided.first_offsets[array_position(decided.partitions, b.partition_id)];
            appended_at := coalesce((
                select r.appended_at from msgtx.record_batch r
                where r.partition_id = b.partition_id and r.base_offset = refuse_whole.base_offset), decided.decided_at);
            return next;
        end loop;
        ignored := msgtx.flush_log();  -- the first call's COMMIT may have waited in vain, see there
        return;
    end if;
    select r.error, r.detail into error, detail from msgtx.refusal(
        state.status, state.outcome, state.decided_by, state.current_epoch,
        in_producer_id, in_producer_epoch, in_transaction_number) r;
    if state.status = 'open' then
        error := 'InvalidTransactionState: rows';
        detail := format('transaction %s.%s.%s has rows: append and decide it in steps',
                         in_producer_id, in_producer_epoch, in_transaction_number);
    elsif error is null then
        error := offsets_error;
        detail := offsets_detail;
    end if;
    if error is not null then
        return next;
        return;
    end if;

    for found_batch in select f.* from msgtx.look_at_batches(batches) f order by f.ordinal loop
        error := null;
        detail := null;
        if found_batch.verdict <> 'store' then
            select r.error, r.detail into error, detail
            from msgtx.batch_refusal(batches[found_batch.ordinal], found_batch) r;
            refusals := refusals + (error is not null)::int;
        end if;
        found_errors := array_append(found_errors, error);
        found_details := array_append(found_details, detail);
        found_offsets := array_append(found_offsets, found_batch.base_offset);
        found_times := array_append(found_times, found_batch.appended_at);
    end loop;
    if refusals > 0 then
        return query select a.error, a.detail, a.base_offset, a.appended_at, false
        from unnest(found_errors, found_details, found_offsets, found_times) a(error, detail, base_offset, appended_at);
    end if;
end $$;
