-- is_producer_idle(producer_id) → whether a producer id is past its expiry and has nothing open or unfinished (I13). It was
-- used last when it was initialized, or when its newest transaction was opened or decided: rows, not a column that the hot
-- path would update (P34). wrote_since finds its records outside transactions.
-- Reads producer, transaction, transaction_decision, partition, partition_floor: each decision of this producer that is in
-- the history.
create function msgtx.is_producer_idle(in_producer_id bigint) returns boolean language plpgsql volatile as $$
declare
    expired timestamptz;
    known record;
    opened record;
    decided record;
begin
    select * into known from msgtx.producer p where p.producer_id = in_producer_id;
    expired := msgtx.clock() - interval '1 ms' * msgtx.setting_value(
        case when known.transactional_id is null then 'producer_id_expiration_ms' else 'transactional_id_expiration_ms' end);
    if known.initialized_at < expired is not true then
        return false;
    end if;
    select t.producer_epoch, t.transaction_number, t.opened_at into opened
    from msgtx.transaction t where t.producer_id = in_producer_id
    order by t.producer_epoch desc, t.transaction_number desc limit 1;
    select d.producer_epoch, d.transaction_number, d.decided_at, d.partitions, d.last_offsets into decided
    from msgtx.transaction_decision d where d.producer_id = in_producer_id
    order by d.producer_epoch desc, d.transaction_number desc limit 1;
    if greatest(opened.opened_at, decided.decided_at) >= expired
       or (opened.opened_at is not null and not exists (
           select from msgtx.decision_of(in_producer_id, opened.producer_epoch, opened.transaction_number)))
       or not msgtx.is_below_floors(decided.partitions, decided.last_offsets) then
        return false;
    end if;
    -- The newest transaction need not be the one that lies highest on a partition. Transactions above a floor are in
    -- the history (P29).
    return not exists (
        select from msgtx.transaction_decision d
        where d.producer_id = in_producer_id and not msgtx.is_below_floors(d.partitions, d.last_offsets));
end $$;
