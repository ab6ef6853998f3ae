-- unfinished_decisions(older_than_ms, most) → decided transactions whose phase two is not complete: on some partition
-- neither the marker is there nor the floor above it. The oldest first, among the newest 5000 decisions, and of those as
-- many as have 100,000 partitions together (0.1 s), one at least: markers are written from the newest on, so missing ones
-- are found there. `found` is how many there are.
-- Reads transaction_decision, transaction_marker, partition_floor, partition.
-- right: observe of all topics
-- plan: look-ups, nested loops
create function msgtx.unfinished_decisions(older_than_ms bigint, most int)
returns table (
    producer_id bigint, producer_epoch int, transaction_number bigint, outcome text, decided_at timestamptz, decided_by text,
    missing bigint, checked_at timestamptz, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    checked_now timestamptz := msgtx.clock();
begin
    return query
    select r.producer_id, r.producer_epoch, r.transaction_number, r.outcome, r.decided_at, r.decided_by,
           m.missing, checked_now, count(*) over ()
    from (
        select d.*, sum(cardinality(d.partitions)) over (
                   order by d.decided_at desc rows between unbounded preceding and 1 preceding) as before
        from (select d.* from msgtx.transaction_decision d
              where d.partitions <> '{}' and d.decided_at < checked_now - older_than_ms * interval '1 ms'
              order by d.decided_at desc limit 5000) d) r
    cross join lateral (
        select count(*) as missing
        from unnest(r.partitions, r.last_offsets) x(partition_id, last_offset)
        where (select true from msgtx.partition p where p.partition_id = x.partition_id)
          and not exists (select from msgtx.marker_of(x.partition_id, r.producer_id, r.producer_epoch, r.transaction_number))
          and (select f.stable_floor from msgtx.floor_of(x.partition_id) f) > x.last_offset is not true) m
    where m.missing > 0 and coalesce(r.before, 0) < 100000
    order by r.decided_at
    limit most;
end $$;
