-- insert_decision(name, outcome, decided_by) is the commit point (I4): one row whose key makes a second decision
-- impossible. → its partitions: its spans come from where the transaction began on each, and its last row there. The caller
-- holds the producer's lock exclusively.
-- Reads transaction_partition, record_batch. Writes transaction_decision.
create function msgtx.insert_decision(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_outcome text, in_decided_by text
) returns int[] language plpgsql volatile as $$
declare
    written int[];
    ignored boolean := msgtx.flush_at_commit();
begin
    insert into msgtx.transaction_decision (
        producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by,
        partitions, first_offsets, last_offsets)
    select in_producer_id, in_producer_epoch, in_transaction_number, in_outcome, msgtx.clock(), in_decided_by,
           s.partitions, s.first_offsets, s.last_offsets
    from msgtx.transaction_spans(in_producer_id, in_producer_epoch, in_transaction_number) s
    returning transaction_decision.partitions into written;
    return written;
end $$;
