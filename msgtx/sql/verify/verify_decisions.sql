-- verify_decisions(partitions, after, most) looks at the next decisions of the installation, by name, for verify, on one
-- snapshot: those that name one of these partitions. → where it came to (null: the end), how many rows, how many of them
-- concern these partitions, and as JSON each partition of one that breaks a rule, with the rules' names. Rows that retention
-- removed from the front of a log, and deleted partitions, are skipped.
--   decision_outcome, decision_arrays   no outcome at all; spans that do not belong together
--   span_start, span_end                no batch of the transaction begins, or ends, where the decision says
--   marker_missing                      an ABORT below the floor without marker: a reader would take it for committed
-- Reads transaction_decision, transaction_marker, record_batch, partition, partition_floor.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.verify_decisions(
    partition_ids int[], in_after bigint[], most int,
    out next_after bigint[], out looked_at bigint, out transactions bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- So that a partition is found without going through them.
    ids constant int[] := array(select u.id from unnest(partition_ids) u(id) order by u.id);
begin
    with chunk as materialized (
        select d.*, exists (select from unnest(d.partitions) u(id) where ids[width_bucket(u.id, ids)] = u.id) as concerned,
               cardinality(d.partitions) <> cardinality(d.first_offsets)
               or cardinality(d.partitions) <> cardinality(d.last_offsets) as uneven
        from msgtx.transaction_decision d
        where (d.producer_id, d.producer_epoch, d.transaction_number)
              > (coalesce(in_after[1], -1), coalesce(in_after[2], -1), coalesce(in_after[3], -1))
        order by d.producer_id, d.producer_epoch, d.transaction_number limit most),
    looked as (
        select c.producer_id, c.producer_epoch, c.transaction_number, c.outcome, s.partition_id, s.first_offset,
               s.last_offset, log.stable_floor, array_remove(array[
                   case when c.outcome not in ('COMMIT', 'ABORT') then 'decision_outcome' end,
                   case when c.uneven or s.last_offset < s.first_offset or s.time > 1 then 'decision_arrays' end,
                   case when s.first_offset >= log.first_offset and not exists (
                            select from msgtx.record_batch r
                            where r.partition_id = s.partition_id and r.base_offset = s.first_offset
                              and r.producer_id = c.producer_id and r.producer_epoch = c.producer_epoch
                              and r.transaction_number = c.transaction_number) then 'span_start' end,
                   case when s.last_offset >= log.first_offset and (
                            select r.last_offset = s.last_offset and r.producer_id = c.producer_id
                                   and r.producer_epoch = c.producer_epoch and r.transaction_number = c.transaction_number
                            from msgtx.record_batch r
                            where r.partition_id = s.partition_id and r.base_offset <= s.last_offset
                            order by r.base_offset desc limit 1) is not true then 'span_end' end,
                   case when c.outcome = 'ABORT' and s.first_offset < log.stable_floor and s.last_offset >= log.first_offset
                          and not exists (select from msgtx.marker_of(
                              s.partition_id, c.producer_id, c.producer_epoch, c.transaction_number))
                        then 'marker_missing' end], null) as rules
        from chunk c
        cross join lateral (
            select u.*, row_number() over (partition by u.partition_id order by u.ordinal) as time
            from unnest(c.partitions, c.first_offsets, c.last_offsets)
                with ordinality u(partition_id, first_offset, last_offset, ordinal)) s
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = s.partition_id limit 1) p
        cross join lateral (
            select coalesce((select r.base_offset from msgtx.record_batch r
                             where r.partition_id = s.partition_id order by r.base_offset limit 1),
                            p.log_start_offset) as first_offset,
                   (select f.stable_floor from msgtx.floor_of(s.partition_id) f) as stable_floor) log
        where c.concerned and ids[width_bucket(s.partition_id, ids)] = s.partition_id)
    select (select max(array[c.producer_id, c.producer_epoch, c.transaction_number]) from chunk c),
           (select count(*) from chunk c), (select count(*) from chunk c where c.concerned),
           coalesce(jsonb_agg(to_jsonb(l) order by l.partition_id, l.first_offset) filter (where l.rules <> '{}'), '[]')
    into next_after, looked_at, transactions, broken
    from looked l;
end $$;
