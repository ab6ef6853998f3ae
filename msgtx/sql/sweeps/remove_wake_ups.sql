-- remove_wake_ups(after, most) removes rows that listeners have seen long ago, at most 10,000 in one call, and rows dated
-- more than a minute ahead (the clock was set back); → how many. A row is dated within its SQL transaction. A listener may
-- miss a row that became visible a minute later; then it looks by itself (fetch_max_wait_ms).
-- Locks the leases (share); passes by rows that are locked. Deletes from wake_up. Not flushed by itself.
-- right: consume, admin of all topics
-- commit: asynchronous
-- plan: look-ups
create function msgtx.remove_wake_ups(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    rows_at_once constant int := 10000;  -- in one SQL transaction
    moment constant timestamptz := msgtx.clock();
    ignored boolean;
begin
    ignored := msgtx.require_leases(shards, epochs);
    delete from msgtx.wake_up w
    where w.ctid = any(array(
        select u.ctid from msgtx.wake_up u
        where u.woken_at not between moment - interval '1 minute' and moment + interval '1 minute' limit rows_at_once
        for update skip locked));
    get diagnostics removed = row_count;
    next_after := case when removed >= rows_at_once then array[removed] end;
end $$;
