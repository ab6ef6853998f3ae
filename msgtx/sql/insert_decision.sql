-- insert_decision(name, outcome, decided_by) is the commit point (I4): one row whose key makes a second decision
-- impossible. Its spans come from where the transaction began on each partition and its last row there. The caller holds
-- the producer's lock exclusively.
-- Reads transaction_partition, record_batch. Writes transaction_decision.
create function msgtx.insert_decision(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_outcome text, in_decided_by text
) returns boolean language plpgsql volatile as $$
declare
    ignored boolean := msgtx.flush_at_commit();
begin
    insert into msgtx.transaction_decision (
        producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by,
        partitions, first_offsets, last_offsets)
    select in_producer_id, in_producer_epoch, in_transaction_number, in_outcome, msgtx.clock(), in_decided_by,
           coalesce(array_agg(tp.partition_id order by tp.partition_id), '{}'),
           coalesce(array_agg(tp.first_offset order by tp.partition_id), '{}'),
           coalesce(array_agg(coalesce(newest.last_offset, tp.first_offset) order by tp.partition_id), '{}')
    from msgtx.transaction_partition tp
    left join lateral (
        select r.last_offset from msgtx.record_batch r
        where r.partition_id = tp.partition_id and r.producer_id = in_producer_id
          and r.producer_epoch = in_producer_epoch and r.transaction_number = in_transaction_number
        order by r.base_sequence desc limit 1) newest on true
    where tp.producer_id = in_producer_id and tp.producer_epoch = in_producer_epoch
      and tp.transaction_number = in_transaction_number;
    return true;
end $$;
