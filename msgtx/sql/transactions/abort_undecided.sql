-- abort_undecided(producer_id, decided_by) ends the undecided transaction of a producer id, of any epoch, if there is one,
-- and writes its markers if the marking lock is free. The caller holds the producer's lock exclusively.
-- Reads transaction. Writes transaction_decision, transaction_marker, partition_floor.
create function msgtx.abort_undecided(in_producer_id bigint, in_decided_by text)
returns boolean language plpgsql volatile as $$
declare
    newest record;
    partitions int[];
begin
    select t.producer_epoch, t.transaction_number into newest
    from msgtx.transaction t where t.producer_id = in_producer_id
    order by t.producer_epoch desc, t.transaction_number desc limit 1;
    if newest.transaction_number is null or exists (
        select from msgtx.decision_of(in_producer_id, newest.producer_epoch, newest.transaction_number)) then
        return false;
    end if;
    partitions := msgtx.insert_decision(
        in_producer_id, newest.producer_epoch, newest.transaction_number, 'ABORT', in_decided_by);
    perform msgtx.mark();
    return msgtx.wake_readers(partitions);
end $$;
