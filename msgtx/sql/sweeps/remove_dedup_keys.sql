-- remove_dedup_keys(after, most) removes dedup keys past dedup_window_ms, also of deleted topics, at most 10,000 in one
-- call; → how many. The window of one that lies further in the future than it lasts begins here.
-- Locks the leases (share); passes by rows that are locked. Deletes from and updates dedup_key. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops
create function msgtx.remove_dedup_keys(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    rows_at_once constant int := 10000;  -- in one SQL transaction
    moment constant timestamptz := msgtx.clock();
    lifetime constant interval := msgtx.setting_value('dedup_window_ms') * interval '1 ms';
    dated int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    delete from msgtx.dedup_key d
    where d.ctid = any(array(
        select k.ctid from msgtx.dedup_key k
        where k.appended_at <= moment - lifetime and (shards is null or k.topic_id % 50 = any(shards))
        order by k.appended_at limit rows_at_once for update skip locked));
    get diagnostics removed = row_count;
    update msgtx.dedup_key d set appended_at = moment
    where d.ctid = any(array(
        select k.ctid from msgtx.dedup_key k
        where k.appended_at > moment + lifetime and (shards is null or k.topic_id % 50 = any(shards))
        order by k.appended_at limit rows_at_once - removed for update skip locked));
    get diagnostics dated = row_count;
    next_after := case when removed + dated >= rows_at_once then array[removed] end;
end $$;
