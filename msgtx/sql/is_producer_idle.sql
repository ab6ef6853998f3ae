-- is_producer_idle(producer_id) → whether a producer id is past its expiry and has nothing open or unfinished (I13). It was used
-- last when it was initialized, when its newest transaction was opened or decided, or, without a transactional id, when its
-- newest batch was appended, also if retention has kept no more of that than its state: rows, not a column that the hot
-- path would update (P34).
-- Reads producer, transaction, transaction_decision, partition, partition_floor, record_batch, producer_state.
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
           select from msgtx.transaction_decision d where d.producer_id = in_producer_id
           and d.producer_epoch = opened.producer_epoch and d.transaction_number = opened.transaction_number))
       or not msgtx.is_below_floors(decided.partitions, decided.last_offsets) then
        return false;
    end if;
    if known.transactional_id is not null and decided.decided_at is null then
        return true;
    end if;
    -- The newest transaction need not be the one that lies highest on a partition.
    return not exists (
        select from msgtx.partition q
        left join lateral (
            select r.appended_at, r.last_offset, r.transaction_number from msgtx.record_batch r
            where r.partition_id = q.partition_id and r.producer_id = in_producer_id
            order by r.producer_epoch desc, r.base_sequence desc limit 1) newest on true
        left join lateral (
            select s.appended_at from msgtx.producer_state s
            where s.partition_id = q.partition_id and s.producer_id = in_producer_id limit 1) kept on true
        where (known.transactional_id is null and greatest(newest.appended_at, kept.appended_at) >= expired)
           or (newest.transaction_number is not null
               and not msgtx.is_below_floors(array[q.partition_id], array[newest.last_offset])));
end $$;
