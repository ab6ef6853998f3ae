-- expire_pending(spans) aborts the overdue transactions in which these records are pending (I12), at most 100: who is still
-- held back comes again. → whether there was one. Tries locks of producers. Reads transaction. Writes transaction_decision
-- through expire_transaction.
create function msgtx.expire_pending(spans msgtx.share_span[]) returns boolean language plpgsql volatile as $$
declare
    overdue record;
    expired boolean := false;
begin
    for overdue in
        select distinct s.producer_id, s.producer_epoch, s.transaction_number from unnest(spans) s
        cross join lateral msgtx.transaction_of(s.producer_id, s.producer_epoch, s.transaction_number) t
        where s.status = 'pending'
          and (msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at)
               or msgtx.is_deserted(s.producer_id, s.producer_epoch, s.transaction_number))
        limit 100
    loop
        expired := msgtx.expire_transaction(overdue.producer_id, overdue.producer_epoch, overdue.transaction_number)
            or expired;
    end loop;
    return expired;
end $$;
