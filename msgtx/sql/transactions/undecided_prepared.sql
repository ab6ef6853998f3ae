-- undecided_prepared(producer_id) → the transaction of a producer id that is prepared for an outside decision, if there is
-- one. Reads transaction_seal, transaction_decision.
-- right: produce
create function msgtx.undecided_prepared(in_producer_id bigint)
returns table (producer_epoch int, transaction_number bigint) language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select s.producer_epoch, s.transaction_number from msgtx.transaction_seal s
    where s.producer_id = in_producer_id and s.kind = 'external' and not exists (
        select from msgtx.decision_of(s.producer_id, s.producer_epoch, s.transaction_number))
    order by s.producer_epoch desc, s.transaction_number desc limit 1
$$;
