-- settle(partitions) brings the floors of partitions up; → how many moved, and how many markers were missing on the way. An
-- ABORT among the first 100 transactions above a floor is marked, again and again while there are some; a COMMIT needs no
-- marker once the floor is above it. The floor of a partition: the least of first undecided offset, first ABORT without
-- marker, and log end, all from one statement on one snapshot (P44). The caller holds the marking lock.
-- Reads transaction_partition, transaction_decision, transaction_marker, record_batch. Writes partition_floor;
-- transaction_marker through insert_markers.
-- plan: look-ups, nested loops
create function msgtx.settle(touched int[], out markers int, out floors int) language plpgsql volatile as $$
#variable_conflict use_column
declare
    decided msgtx.transaction_decision[];
    late int;
    moved int;
begin
    markers := 0;
    floors := 0;
    -- Each turn brings the floors to the next ABORT without marker; the rest after ten turns is for the next round.
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
            cross join lateral msgtx.decision_of(u.producer_id, u.producer_epoch, u.transaction_number) d
            where d.outcome = 'ABORT');
        late := msgtx.insert_markers(decided);
        markers := markers + late;

        insert into msgtx.partition_floor (partition_id, stable_floor)
        select p.partition_id, least(blocking.first_offset, log_end.next_offset)
        from unnest(touched) t(partition_id)
        cross join lateral (
            select p.partition_id, p.log_start_offset from msgtx.partition p where p.partition_id = t.partition_id limit 1) p
        cross join lateral (
            select coalesce(max(f.stable_floor), 0) as stable_floor from msgtx.partition_floor f
            where f.partition_id = p.partition_id) f
        left join lateral (
            select tp.first_offset from msgtx.transaction_partition tp
            where tp.partition_id = p.partition_id and tp.first_offset >= f.stable_floor
              and (select d.outcome = 'COMMIT' or exists (
                       select from msgtx.marker_of(p.partition_id, d.producer_id, d.producer_epoch, d.transaction_number))
                   from msgtx.decision_of(tp.producer_id, tp.producer_epoch, tp.transaction_number) d) is not true
            order by tp.first_offset limit 1) blocking on true
        cross join lateral (
            select greatest(p.log_start_offset, (
                select r.last_offset + 1 from msgtx.last_row_of(p.partition_id) r)) as next_offset) log_end
        where least(blocking.first_offset, log_end.next_offset) > f.stable_floor
        on conflict do nothing;
        get diagnostics moved = row_count;
        floors := floors + moved;
        exit when late = 0;
    end loop;
end $$;
