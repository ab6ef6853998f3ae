-- refuse_whole(name, batches, state, …) → the answer of a fused call whose transaction is not new, or whose offsets were
-- refused. Committed already: success, with the stored offsets.
-- Reads transaction_decision, record_batch.
create function msgtx.refuse_whole(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, batches msgtx.batch[],
    state record, offsets_error text, offsets_detail text)
returns table (error text, detail text, base_offset bigint, appended_at timestamptz, duplicate boolean)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    decided record;
    b msgtx.batch;
begin
    duplicate := state.status = 'decided' and state.outcome = 'COMMIT';
    if duplicate then
        select d.partitions, d.first_offsets, d.decided_at into decided from msgtx.transaction_decision d
        where d.producer_id = in_producer_id and d.producer_epoch = in_producer_epoch
          and d.transaction_number = in_transaction_number;
        foreach b in array batches loop
            base_offset := decided.first_offsets[array_position(decided.partitions, b.partition_id)];
            appended_at := coalesce((
                select r.appended_at from msgtx.record_batch r
                where r.partition_id = b.partition_id and r.base_offset = refuse_whole.base_offset), decided.decided_at);
            return next;
        end loop;
        return;
    end if;
    select r.error, r.detail into error, detail from msgtx.refusal(
        state.status, state.outcome, state.decided_by, state.current_epoch,
        in_producer_id, in_producer_epoch, in_transaction_number) r;
    error := replace(error, 'InvalidProducerEpoch', 'ProducerFenced');
    if error is null and state.status = 'open' then
        error := 'InvalidTransactionState';
        detail := format('transaction %s.%s.%s has rows: append and decide it in steps',
                         in_producer_id, in_producer_epoch, in_transaction_number);
    elsif error is null then
        error := offsets_error;
        detail := offsets_detail;
    end if;
    return next;
end $$;
