-- transaction_state(name) → what a call with this name may expect; the one answer for append, the fused call, decide and
-- seal. The caller holds the producer's lock. Number null: a call outside a transaction.
--   fenced      the epoch is older than the producer's
--   unknown     no such producer, or an epoch above the producer's
--   decided     outcome and decided_by say how
--   sealed      votes are in, no decision
--   open        it has its row and no decision
--   new         no rows, and it may be opened or decided: its number is the newest + 1 of its epoch
--   concurrent  as new, but an earlier transaction of this producer id is undecided
--   over        no rows, and not the newest + 1
--   idle, busy  outside a transaction: nothing open; a transaction of this producer is open
-- Reads producer, transaction, transaction_decision, transaction_seal.
create function msgtx.transaction_state(
    asked_producer_id bigint, asked_epoch int, asked_number bigint
) returns msgtx.transaction_status language plpgsql volatile as $$
#variable_conflict use_column
declare
    answer msgtx.transaction_status;
    newest_decision record;
    newest record;
    newest_number bigint;
begin
    -- Only the newest row of table transaction can be undecided: a later one is not inserted before (ConcurrentTransactions).
    select p.epoch, p.timeout_ms,
           t.producer_epoch, t.transaction_number, t.opened_at is not null as found,
           d.outcome, d.decided_by, s.kind
    into newest
    from msgtx.producer p
    left join lateral (
        select t.producer_epoch, t.transaction_number, t.opened_at from msgtx.transaction t
        where t.producer_id = p.producer_id order by t.producer_epoch desc, t.transaction_number desc limit 1) t on true
    left join msgtx.transaction_decision d on d.producer_id = p.producer_id
        and d.producer_epoch = t.producer_epoch and d.transaction_number = t.transaction_number
    left join msgtx.transaction_seal s on s.producer_id = p.producer_id
        and s.producer_epoch = t.producer_epoch and s.transaction_number = t.transaction_number
    where p.producer_id = asked_producer_id;
    answer.current_epoch := coalesce(newest.epoch, 0);
    answer.default_timeout_ms := newest.timeout_ms;

    if asked_number is null then
        answer.status := case
            when asked_epoch < answer.current_epoch then 'fenced'
            when asked_epoch > answer.current_epoch then 'unknown'
            when newest.found and newest.outcome is null then 'busy'
            else 'idle' end;
        return answer;
    end if;

    if newest.producer_epoch = asked_epoch and newest.transaction_number = asked_number then
        answer.outcome := newest.outcome;
        answer.decided_by := newest.decided_by;
        answer.status := case
            when newest.outcome is not null then 'decided'
            when asked_epoch < answer.current_epoch then 'fenced'
            when newest.kind is not null then 'sealed'
            else 'open' end;
        return answer;
    end if;

    select d.transaction_number, d.outcome, d.decided_by into newest_decision
    from msgtx.transaction_decision d
    where d.producer_id = asked_producer_id and d.producer_epoch = asked_epoch
    order by d.transaction_number desc limit 1;
    if newest_decision.transaction_number > asked_number then
        select d.transaction_number, d.outcome, d.decided_by into newest_decision
        from msgtx.transaction_decision d
        where d.producer_id = asked_producer_id and d.producer_epoch = asked_epoch and d.transaction_number = asked_number;
        newest_number := asked_number;
    else
        newest_number := greatest(
            newest_decision.transaction_number,
            case when newest.producer_epoch = asked_epoch then newest.transaction_number end);
    end if;
    if newest_decision.transaction_number = asked_number then
        answer.outcome := newest_decision.outcome;
        answer.decided_by := newest_decision.decided_by;
        answer.status := 'decided';
        return answer;
    end if;
    answer.status := case
        when asked_epoch < answer.current_epoch then 'fenced'
        when newest.epoch is null or asked_epoch > answer.current_epoch then 'unknown'
        when asked_number <> coalesce(newest_number, -1) + 1 then 'over'
        when newest.found and newest.outcome is null then 'concurrent'
        else 'new' end;
    return answer;
end $$;
