-- mark(everything) is phase two, in bulk: markers for what is decided, then the floors. Repeatable; who does not get the
-- marking lock does nothing.
--   Decisions without markers are found by their dates: from 2 s before the newest marked one (some become visible late)
--   to now. Dates in the future (the clock was set back) are left out, and do not hide those of now. What is not found by
--   its date is found by its place: an ABORT among the first 100 transactions above a floor is marked below, again and
--   again while there are some; a COMMIT needs no marker once the floor is above it.
--   everything      also the partitions that these decisions do not touch (sweeps); shards, epochs: those of a coordinator
-- The floor of a partition: the least of first undecided offset, first ABORT without marker, and log end, all from one
-- statement on one snapshot (P44).
-- Locks the leases (share); tries the marking lock. Writes partition_floor; transaction_marker through insert_markers. Not
-- flushed by itself.
create function msgtx.mark(
    everything boolean default false, shards int[] default null, epochs int[] default null, out markers int, out floors int)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set lock_timeout = '10s'
set jit = off set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    now_at timestamptz := msgtx.clock();
    marked_until timestamptz;
    decided msgtx.transaction_decision[];
    touched int[];
    late int;
    moved int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    markers := 0;
    floors := 0;
    ignored := msgtx.require_leases(shards, epochs);
    if not msgtx.try_lock_marking() then
        return;
    end if;
    marked_until := (
        select d.decided_at from msgtx.transaction_decision d
        where d.partitions <> '{}'
          and (select true from msgtx.transaction_marker m
               where m.partition_id = d.partitions[1] and m.producer_id = d.producer_id
                 and m.producer_epoch = d.producer_epoch and m.transaction_number = d.transaction_number)
        order by d.decided_at desc limit 1);

    decided := array(
        select d from msgtx.transaction_decision d
        where d.partitions <> '{}' and d.decided_at <= now_at + interval '2 s'
          and d.decided_at >= coalesce(least(marked_until, now_at) - interval '2 s', '-infinity')
          and exists (
              select from unnest(d.partitions) s(partition_id)
              where (select true from msgtx.transaction_marker m
                     where m.partition_id = s.partition_id and m.producer_id = d.producer_id
                       and m.producer_epoch = d.producer_epoch and m.transaction_number = d.transaction_number) is null)
        order by d.decided_at limit 20000);
    markers := msgtx.insert_markers(decided);
    touched := array(
        select distinct s.partition_id from unnest(decided) r cross join lateral unnest(r.partitions) s(partition_id)
        union
        select u.partition_id from msgtx.unsettled_partitions(shards) u where everything);
    if touched = '{}' then
        return;
    end if;

    -- Each turn brings the floors to the next ABORT without marker; what ten turns leave is for the next round.
    for turn in 1..10 loop
        decided := array(
            select distinct d
            from unnest(touched) p(partition_id)
            cross join lateral (
                select coalesce(max(f.stable_floor), 0) as stable_floor from msgtx.partition_floor f
                where f.partition_id = p.partition_id) f
            cross join lateral (
                select tp.producer_id, tp.producer_epoch, tp.transaction_number from msgtx.transaction_partition tp
                where tp.partition_id = p.partition_id and tp.first_offset >= f.stable_floor
                order by tp.first_offset limit 100) u
            cross join lateral (
                select d.* from msgtx.transaction_decision d
                where d.producer_id = u.producer_id and d.producer_epoch = u.producer_epoch
                  and d.transaction_number = u.transaction_number limit 1) d
            where d.outcome = 'ABORT');
        late := msgtx.insert_markers(decided);
        markers := markers + late;

        insert into msgtx.partition_floor (partition_id, stable_floor)
        select p.partition_id, least(blocking.first_offset, log_end.next_offset)
        from unnest(touched) t(partition_id)
        join msgtx.partition p on p.partition_id = t.partition_id
        cross join lateral (
            select coalesce(max(f.stable_floor), 0) as stable_floor from msgtx.partition_floor f
            where f.partition_id = p.partition_id) f
        left join lateral (
            select tp.first_offset from msgtx.transaction_partition tp
            where tp.partition_id = p.partition_id and tp.first_offset >= f.stable_floor
              and (select d.outcome = 'COMMIT' or (
                       select true from msgtx.transaction_marker m where m.partition_id = tp.partition_id
                       and m.producer_id = tp.producer_id and m.producer_epoch = tp.producer_epoch
                       and m.transaction_number = tp.transaction_number) is not null
                   from msgtx.transaction_decision d
                   where d.producer_id = tp.producer_id and d.producer_epoch = tp.producer_epoch
                     and d.transaction_number = tp.transaction_number) is not true
            order by tp.first_offset limit 1) blocking on true
        cross join lateral (
            select greatest(p.log_start_offset, (
                select r.last_offset + 1 from msgtx.record_batch r
                where r.partition_id = p.partition_id order by r.base_offset desc limit 1)) as next_offset) log_end
        where least(blocking.first_offset, log_end.next_offset) > f.stable_floor
        on conflict do nothing;
        get diagnostics moved = row_count;
        floors := floors + moved;
        exit when late = 0;
    end loop;
end $$;
