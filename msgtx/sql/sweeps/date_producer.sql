-- date_producer(producer_id, expiration_ms, moment) dates a producer id's uses anew that lie further in the future than its
-- expiry (is_ahead): its init, and its newest transaction. → whether there was one.
-- Tries the producer's lock and never waits. Updates producer, transaction.
create function msgtx.date_producer(in_producer_id bigint, expiration_ms bigint, moment timestamptz)
returns boolean language plpgsql volatile as $$
declare
    opened record;
    is_init_ahead constant boolean := (
        select msgtx.is_ahead(p.initialized_at, expiration_ms, moment) from msgtx.producer p
            where p.producer_id = in_producer_id);
begin
    select t.producer_epoch, t.transaction_number, msgtx.is_ahead(t.opened_at, expiration_ms, moment) as is_ahead into opened
    from msgtx.transaction t where t.producer_id = in_producer_id
    order by t.producer_epoch desc, t.transaction_number desc limit 1;
    if (is_init_ahead or opened.is_ahead) is not true or not msgtx.try_lock_producer(in_producer_id) then
        return false;
    end if;
    update msgtx.producer p set initialized_at = moment where p.producer_id = in_producer_id and is_init_ahead;
    update msgtx.transaction t set opened_at = moment
    where t.producer_id = in_producer_id and t.producer_epoch = opened.producer_epoch
      and t.transaction_number = opened.transaction_number and opened.is_ahead
      and exists (select from msgtx.decision_of(t.producer_id, t.producer_epoch, t.transaction_number));
    return true;
end $$;
