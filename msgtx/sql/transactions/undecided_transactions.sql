-- undecided_transactions(partitions, …) → transactions without a decision, found as fetch finds them: from each partition's
-- floor on. A row per partition and transaction, the oldest first; before them those without a transaction row, which must
-- not be.
--   in_partition_ids  null: all whose floor is below their log end
--   each_partition    at most this many of each partition, the earliest: the first one holds the partition back
--   overdue_only      only those older than limit_ms (null: than its own timeout), or lacks its transaction or producer row
--   most              rows in the answer; `found` is how many there are
-- Reads topic, partition, partition_floor, transaction tables, producer, record_batch.
-- right: observe of all topics
-- null: log_end_offset, transactional_id, current_epoch, opened_at, timeout_ms, client_host, client_process
-- null: database_backend, seal_kind, sealed_at, seal_deadline, last_appended_at
-- plan: look-ups, nested loops
create function msgtx.undecided_transactions(
    in_partition_ids int[], each_partition int, overdue_only boolean, limit_ms bigint, most int)
returns table (
    topic text, partition_index int, first_offset bigint, log_end_offset bigint,
    producer_id bigint, producer_epoch int, transaction_number bigint, transactional_id text, current_epoch int,
    opened_at timestamptz, timeout_ms int, client_host text, client_process int, database_backend int,
    seal_kind text, sealed_at timestamptz, seal_deadline timestamptz, coordinator_epoch int,
    last_appended_at timestamptz, checked_at timestamptz, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    checked_now timestamptz := msgtx.clock();
begin
    return query
    with undecided as (
        select p.partition_id, t.name, p.partition_index, u.first_offset, u.producer_id, u.producer_epoch,
               u.transaction_number
        from (
            select a.partition_id from unnest(in_partition_ids) a(partition_id)
            union
            select x.partition_id from msgtx.unsettled_partitions() x where in_partition_ids is null) asked
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = asked.partition_id limit 1) p
        cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
        cross join lateral (
            select coalesce(max(f.stable_floor), 0) as stable_floor from msgtx.partition_floor f
            where f.partition_id = p.partition_id) floor
        cross join lateral (
            select tp.first_offset, tp.producer_id, tp.producer_epoch, tp.transaction_number
            from msgtx.transaction_partition tp
            where tp.partition_id = p.partition_id and tp.first_offset >= floor.stable_floor
              and not exists (select from msgtx.decision_of(tp.producer_id, tp.producer_epoch, tp.transaction_number))
            order by tp.first_offset limit each_partition) u),
    chosen as (
        select u.*, w.transactional_id, w.epoch as current_epoch, o.opened_at, o.timeout_ms, o.client_host,
               o.client_process, o.database_backend, count(*) over () as found
        from undecided u
        left join lateral msgtx.transaction_of(u.producer_id, u.producer_epoch, u.transaction_number) o on true
        left join lateral (
            select w.* from msgtx.producer w where w.producer_id = u.producer_id limit 1) w on true
        where not overdue_only or o.opened_at is null or w.epoch is null
           or o.opened_at + coalesce(limit_ms, o.timeout_ms) * interval '1 ms' < checked_now
        order by o.opened_at nulls first, u.name, u.partition_index, u.first_offset
        limit most)
    select c.name, c.partition_index, c.first_offset, tail.next_offset,
           c.producer_id, c.producer_epoch, c.transaction_number, c.transactional_id, c.current_epoch,
           c.opened_at, c.timeout_ms, c.client_host, c.client_process, c.database_backend,
           s.kind, s.sealed_at, s.deadline, coalesce(marker.coordinator_epoch, -1), newest.appended_at, checked_now, c.found
    from chosen c
    left join lateral msgtx.seal_of(c.producer_id, c.producer_epoch, c.transaction_number) s on true
    left join lateral (
        select r.last_offset + 1 as next_offset from msgtx.last_row_of(c.partition_id) r) tail on true
    left join lateral (
        select m.coordinator_epoch from msgtx.transaction_marker m
        where m.partition_id = c.partition_id and m.producer_id = c.producer_id
        order by m.producer_epoch desc, m.transaction_number desc limit 1) marker on true
    left join lateral (
        select r.appended_at from msgtx.record_batch r
        where r.partition_id = c.partition_id and r.producer_id = c.producer_id
        order by r.producer_epoch desc, r.base_sequence desc limit 1) newest on true
    order by c.opened_at nulls first, c.name, c.partition_index, c.first_offset;
end $$;
