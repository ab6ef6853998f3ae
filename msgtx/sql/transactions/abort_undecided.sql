-- abort_undecided(producer_id, decided_by) ends the undecided transaction of a producer id, of any epoch, if there is one,
-- and writes its markers if the marking lock is free. The caller holds the producer's lock exclusively.
-- Reads transaction. Writes transaction_decision, transaction_marker, partition_floor.
create function msgtx.abort_undecided(in_producer_id bigint, in_decided_by text)
returns boolean language plpgsql volatile as $$
declare
    newest record;
    ignored boolean;
begin
    select t.producer_epoch, t.transaction_number into newest
    from msgtx.transaction t where t.producer_id = in_producer_id
    order by t.producer_epoch desc, t.transaction_number desc limit 1;
    if newest.transaction_number is null or exists (
        select from msgtx.transaction_decision d where d.producer_id = in_producer_id
        and d.producer_epoch = newest.producer_epoch and d.transaction_number = newest.transaction_number) then
        return false;
    end if;
    ignored := msgtx.insert_decision(
        in_producer_id, newest.producer_epoch, newest.transaction_number, 'ABORT', in_decided_by);
    perform msgtx.mark();
    perform msgtx.wake_readers(d.partitions) from msgtx.transaction_decision d
    where d.producer_id = in_producer_id and d.producer_epoch = newest.producer_epoch
      and d.transaction_number = newest.transaction_number;
    return true;
end $$;
