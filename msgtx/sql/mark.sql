-- mark(everything) is phase two, in bulk: markers for what is decided, then the floors. Repeatable; who does not get the
-- marking lock does nothing.
--   Decisions without markers are found back from the newest decision to the newest marked one, and 2 s further for those
--   that became visible late. A later one costs nothing: an ABORT that is the first thing above a floor is marked below;
--   a COMMIT needs no marker once the floor is above it.
--   everything: floors of all partitions, not only of those that these decisions touch (sweeps).
-- The floor of a partition: the least of first undecided offset, first ABORT without marker, and log end, all from one
-- statement on one snapshot (P44).
-- Writes transaction_marker, partition_floor. Not flushed by itself.
create function msgtx.mark(everything boolean default false, out markers int, out floors int)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    marked_until timestamptz;
    touched int[];
    late int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    markers := 0;
    floors := 0;
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

    with recent as materialized (
        select d.* from msgtx.transaction_decision d
        where d.partitions <> '{}' and d.decided_at >= coalesce(marked_until - interval '2 s', '-infinity')
        order by d.decided_at limit 20000),
    written as (
        insert into msgtx.transaction_marker (
            partition_id, producer_id, producer_epoch, transaction_number, outcome, first_offset, last_offset,
            coordinator_epoch)
        select s.partition_id, r.producer_id, r.producer_epoch, r.transaction_number, r.outcome,
               s.first_offset, s.last_offset, r.coordinator_epoch
        from recent r
        cross join lateral unnest(r.partitions, r.first_offsets, r.last_offsets) s(partition_id, first_offset, last_offset)
        where (select true from msgtx.transaction_marker m
               where m.partition_id = s.partition_id and m.producer_id = r.producer_id
                 and m.producer_epoch = r.producer_epoch and m.transaction_number = r.transaction_number) is null
        on conflict do nothing
        returning 1)
    select (select count(*) from written),
           (select array_agg(distinct s.partition_id) from recent r cross join lateral unnest(r.partitions) s(partition_id))
    into markers, touched;
    if everything then
        touched := (select array_agg(p.partition_id) from (
            select t.partition_id from msgtx.touched_partitions() t union select unnest(touched)) p);
    end if;
    if touched is null then
        return;
    end if;

    insert into msgtx.transaction_marker (
        partition_id, producer_id, producer_epoch, transaction_number, outcome, first_offset, last_offset,
        coordinator_epoch)
    select p.partition_id, d.producer_id, d.producer_epoch, d.transaction_number, d.outcome,
           d.first_offsets[array_position(d.partitions, p.partition_id)],
           d.last_offsets[array_position(d.partitions, p.partition_id)], d.coordinator_epoch
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
    where d.outcome = 'ABORT'
    on conflict do nothing;
    get diagnostics late = row_count;
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
    get diagnostics floors = row_count;
end $$;
