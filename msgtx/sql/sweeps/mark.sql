-- mark(everything, rest) is phase two, in bulk: markers for what is decided, then the floors. Repeatable; without the
-- marking lock it does nothing. At most 20,000 decisions, and some 20,000 markers, in one call.
-- Decisions without markers are found by their dates: from 2 s before the newest marked one (some become visible late) to
-- now. Dates in the future (the clock was set back) do not hide those of now: they are found by place (settle).
--   everything   also the partitions that these decisions do not touch, all at once (mark_partitions does them in steps)
--   rest_ms      of many clients one works: do nothing, and answer null, if somebody has marked what is newer than this
-- Locks the leases (share); tries the marking lock. Writes transaction_marker and partition_floor through insert_markers and
-- settle. Not flushed by itself.
-- right: produce, admin of all topics
-- commit: asynchronous
-- null: markers, floors
-- plan: look-ups, nested loops
create function msgtx.mark(
    everything boolean default false, shards int[] default null, epochs int[] default null,
    rest_ms int default null, out markers int, out floors int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    now_at timestamptz := msgtx.clock();
    marked_until timestamptz;
    decided msgtx.transaction_decision[];
    touched int[];
    settled record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    markers := case when rest_ms is null then 0 end;
    floors := markers;
    ignored := msgtx.require_leases(shards, epochs);
    -- A round marks all that was decided before it: the oldest of this time tells whether there was one since.
    if (select exists (
            select from msgtx.marker_of(d.partitions[1], d.producer_id, d.producer_epoch, d.transaction_number))
        from msgtx.transaction_decision d
        where d.partitions <> '{}' and d.decided_at > now_at - rest_ms * interval '1 ms' and d.decided_at <= now_at
        order by d.decided_at limit 1)
    then
        return;
    end if;
    if not msgtx.try_lock_marking() then
        return;
    end if;
    markers := 0;
    floors := 0;
    marked_until := (
        select d.decided_at from msgtx.transaction_decision d
        where d.partitions <> '{}' and exists (
            select from msgtx.marker_of(d.partitions[1], d.producer_id, d.producer_epoch, d.transaction_number))
        order by d.decided_at desc limit 1);

    decided := array(
        select d.whole from (
            select d as whole, sum(cardinality(d.partitions)) over (
                       order by d.decided_at, d.producer_id, d.producer_epoch, d.transaction_number)
                       - cardinality(d.partitions) as before
            from (
                select d.* from msgtx.transaction_decision d
                where d.partitions <> '{}' and d.decided_at <= now_at + interval '2 s'
                  and d.decided_at >= coalesce(least(marked_until, now_at) - interval '2 s', '-infinity')
                  and exists (
                      select from unnest(d.partitions) s(id) where not exists (
                          select from msgtx.marker_of(s.id, d.producer_id, d.producer_epoch, d.transaction_number)))
                order by d.decided_at limit 20000) d) d
        where d.before < 20000);
    markers := msgtx.insert_markers(decided);
    touched := array(
        select distinct s.partition_id from unnest(decided) r cross join lateral unnest(r.partitions) s(partition_id)
        union
        select u.partition_id from msgtx.unsettled_partitions(shards) u where everything);
    if touched = '{}' then
        return;
    end if;

    settled := msgtx.settle(touched);
    markers := markers + settled.markers;
    floors := settled.floors;
end $$;
