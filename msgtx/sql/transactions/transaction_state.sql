-- transaction_state(name) → what a call with this name may expect; the one answer for append, the fused call, decide and
-- seal. The caller holds the producer's lock. Number null: a call outside a transaction. Only the newest row of table
-- transaction can be undecided: a later one is not inserted before (ConcurrentTransactions).
--   fenced, unknown  the epoch is older than the producer's; it is above that, or there is no such producer
--   decided          outcome and decided_by say how
--   sealed           votes are in, no decision
--   open             it has its row and no decision
--   new              no rows, and it may be opened or decided: its number is the newest + 1 of its epoch
--   concurrent       as new, but an earlier transaction of this producer id is undecided
--   over, lost       no rows, and an older number than the newest + 1; a newer one: a failover has lost what was ended
--   idle, busy       outside a transaction: nothing open; a transaction of this producer is open
-- Plain SQL: it becomes part of its caller. Reads producer, transaction, transaction_decision, transaction_seal.
create function msgtx.transaction_state(in_producer_id bigint, in_epoch int, in_number bigint)
returns table (status text, outcome text, decided_by text, current_epoch int) language sql stable as $$
    -- Look-ups are laterals with a limit: a plain join may be planned, while its table is small, by the first column of the
    -- key alone, and keep that plan.
    select case
               when own.outcome is not null then 'decided'
               when in_epoch < coalesce(p.epoch, 0) then 'fenced'
               when in_epoch > coalesce(p.epoch, 0) then 'unknown'
               when in_number is null then case when t.opened_at is not null and d.outcome is null then 'busy'
                   else 'idle' end
               when p.epoch is null then 'unknown'
               when t.producer_epoch = in_epoch and t.transaction_number = in_number then
                   case when s.kind is not null then 'sealed' else 'open' end
               when in_number <> 1 + greatest(
                   newest.transaction_number, case when t.producer_epoch = in_epoch then t.transaction_number end, -1)
                   then case when in_number > greatest(
                       newest.transaction_number, case when t.producer_epoch = in_epoch then t.transaction_number end, -1)
                       then 'lost' else 'over' end
               when t.opened_at is not null and d.outcome is null then 'concurrent'
               else 'new' end,
           own.outcome, own.decided_by, coalesce(p.epoch, 0)
    from (select in_producer_id as producer_id offset 0) asked
    left join lateral (select p.* from msgtx.producer p where p.producer_id = asked.producer_id limit 1) p on true
    left join lateral (
        select t.producer_epoch, t.transaction_number, t.opened_at from msgtx.transaction t
        where t.producer_id = p.producer_id order by t.producer_epoch desc, t.transaction_number desc limit 1) t on true
    left join lateral msgtx.decision_of(asked.producer_id, t.producer_epoch, t.transaction_number) d on true
    left join lateral msgtx.seal_of(asked.producer_id, t.producer_epoch, t.transaction_number) s on d.outcome is null
    left join lateral (
        select n.transaction_number from msgtx.transaction_decision n
        where n.producer_id = asked.producer_id and n.producer_epoch = in_epoch
        order by n.transaction_number desc limit 1) newest on in_number is not null
    left join lateral msgtx.decision_of(asked.producer_id, in_epoch, in_number) own on newest.transaction_number >= in_number
$$;
