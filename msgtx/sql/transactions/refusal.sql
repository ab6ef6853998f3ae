-- refusal(state, name) → error and detail for a call whose transaction is not open or new; null, null if it may go on.
-- Aborts by timeout, administrator and resolve leave the producer alive and are answered with their reason.
create function msgtx.refusal(
    status text, outcome text, decided_by text, current_epoch int,
    producer_id bigint, producer_epoch int, transaction_number bigint, out error text, out detail text
) language plpgsql immutable as $$
declare
    name text := format('%s.%s.%s', producer_id, producer_epoch, transaction_number);
begin
    case status
        when 'open', 'new', 'idle' then
            return;
        when 'fenced' then
            error := 'ProducerFenced';
            detail := format('producer %s is at epoch %s; epoch %s was fenced by a newer producer',
                             producer_id, current_epoch, producer_epoch);
        when 'unknown' then
            error := 'InvalidProducerIdMapping';
            detail := format('producer %s with epoch %s is not known here: it expired or was never initialized',
                             producer_id, producer_epoch);
        when 'decided' then
            if outcome = 'ABORT' and decided_by = 'fence' then
                error := 'ProducerFenced';
                detail := format('transaction %s was aborted when a newer producer took over', name);
            elsif outcome = 'ABORT' and decided_by <> 'client' then
                error := 'TransactionAborted: ' || decided_by;
                detail := format('transaction %s was aborted (reason: %s)', name, decided_by);
            else
                error := 'InvalidTransactionState: over';
                detail := format('transaction %s is over: it ended with %s', name, outcome);
            end if;
        when 'sealed' then
            error := 'InvalidTransactionState: sealed';
            detail := format('transaction %s is sealed and takes no more records', name);
        when 'concurrent' then
            error := 'ConcurrentTransactions';
            detail := format('an earlier transaction of producer %s is undecided', producer_id);
        when 'lost' then
            error := 'TransactionsLost';
            detail := format(
                'transaction %s is not the next one of its producer here: the database lacks transactions that this producer'
                ' has ended, as after a failover to a standby that had not received them, or after a restore; make a new'
                ' producer', name);
        when 'busy' then
            error := 'InvalidTransactionState: open';
            detail := format('producer %s has a transaction open; an append outside it is refused', producer_id);
        else
            error := 'InvalidTransactionState: over';
            detail := format('transaction %s is not the next one of its producer and has no rows: it is over', name);
    end case;
end $$;
