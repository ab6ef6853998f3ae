-- woken_since(snapshot) → the partitions and groups of commits that became visible since the snapshot of an earlier call:
-- words like those of the channel (17 a partition, g17 a group; null: none), and the snapshot for the next call. A null
-- snapshot: from here on. A transaction that was running then has one of a few numbers, and a later one a higher number. So
-- a call looks at these rows alone, however many dead ones an old snapshot keeps. Reads wake_up.
-- right: consume
-- null: words
-- plan: look-ups
create function msgtx.woken_since(in_snapshot text, out snapshot text, out words text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    earlier pg_snapshot := in_snapshot;
begin
    snapshot := pg_current_snapshot();
    if earlier is null or snapshot = in_snapshot then
        return;
    end if;
    select string_agg(distinct w.words, ',') into words
    from (
        select w.words from msgtx.wake_up w where w.woken_by >= pg_snapshot_xmax(earlier)
        union all
        select w.words from pg_snapshot_xip(earlier) running(id)
        cross join lateral (select u.words from msgtx.wake_up u where u.woken_by = running.id offset 0) w) w;
end $$;
