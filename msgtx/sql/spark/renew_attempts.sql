-- renew_attempts(app_id, query_id, batch_id, session_ms, timeout_ms) gives the open transactions of a batch's attempts
-- session_ms from now on, at most timeout_ms in all; → how many. Every task of a batch and its driver call it again and
-- again, for all attempts: ended ones wait for the others. If no task calls it, a transaction is overdue session_ms later
-- (I12), even one left over by the batch's decision. Skips locked rows, and rows just renewed by another call. Reads
-- spark_attempt, spark_floor, spark_batch. Updates transaction. Not flushed: after a crash an attempt may be overdue
-- earlier.
-- right: produce
-- plan: look-ups, nested loops
create function msgtx.renew_attempts(
    in_app_id text, in_query_id text, in_batch_id bigint, session_ms int, in_timeout_ms int
) returns int language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    renewed int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.check_timeout(in_timeout_ms);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('transactional_id', array[in_app_id]);
    if msgtx.is_batch_committed(in_app_id, in_query_id, in_batch_id) then
        return 0;
    end if;
    update msgtx.transaction t set timeout_ms = due.timeout_ms
    from (
        select o.place, least(in_timeout_ms,
               greatest(extract(epoch from msgtx.clock() - o.opened_at) * 1000, 0) + session_ms)::int as timeout_ms
        from msgtx.recent_attempts(in_app_id, in_query_id = '') a
        cross join lateral (
            select o.ctid as place, o.opened_at from msgtx.transaction o
            where o.producer_id = a.producer_id and o.producer_epoch = 0 and o.transaction_number = 0
            limit 1 for no key update skip locked) o
        where a.query_id = in_query_id and a.batch_id = in_batch_id) due
    where t.ctid = due.place and t.timeout_ms < due.timeout_ms;
    get diagnostics renewed = row_count;
    return renewed;
end $$;
