-- batch_refusal(b, found) → the error of a batch that look_at_batches found refused, and its text with every value involved;
-- error null if the batch may be stored after all ('large', and no single record is larger than the topic takes).
create function msgtx.batch_refusal(
    b msgtx.batch, found record, out error text, out detail text
) language plpgsql stable as $$
declare
    largest bigint;
    topic constant text := regexp_replace(found.place, '-[0-9]+$', '');
    last_sequence bigint := b.base_sequence + cardinality(b."values") - 1;
begin
    error := found.verdict;
    case found.verdict
        when 'state' then
            select r.error, r.detail into error, detail from msgtx.refusal(
                found.status, found.outcome, found.decided_by, found.current_epoch,
                b.producer_id, b.producer_epoch, b.transaction_number) r;
            error := case found.status when 'fenced' then 'InvalidProducerEpoch' else error end;
        when 'large' then
            largest := (select max(r.record_bytes) from msgtx.record_sizes(b) r);
            error := case when largest > found.max_message_bytes then 'RecordTooLarge' end;
            detail := format('%s takes records of at most %s bytes (max_message_bytes); one has %s',
                             topic, found.max_message_bytes, largest);
        when 'UnknownTopicOrPartition' then
            detail := format('partition %s does not exist (any more)', b.partition_id);
        when 'InvalidProducerEpoch' then
            detail := format('%s holds epoch %s of producer %s; epoch %s is older',
                             found.place, found.epoch_here, b.producer_id, b.producer_epoch);
        when 'OutOfOrderSequence' then
            detail := format('%s: producer %s epoch %s sent sequence %s to %s, the next one is %s', found.place,
                             b.producer_id, b.producer_epoch, b.base_sequence, last_sequence, found.next_sequence);
        when 'InvalidRecord' then
            detail := format('%s is compacted: every record needs a key', topic);
    end case;
end $$;
