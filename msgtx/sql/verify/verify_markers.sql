-- verify_markers(partition, after, most) looks at the next markers of a partition, by name, for verify, on one snapshot. →
-- where it came to (null: the end), how many, and as JSON each one that breaks a rule, with the rules' names.
--   marker_outcome   not the decision's, or no outcome at all      marker_span   not the decision's
--   marker_without_decision   undecided, or above the floor, where no decision is forgotten
-- Reads transaction_marker, transaction_decision, transaction, partition_floor.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.verify_markers(
    in_partition_id int, in_after bigint[], most int, out next_after bigint[], out looked_at bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    with chunk as materialized (
        select m.* from msgtx.transaction_marker m
        where m.partition_id = in_partition_id
          and (m.producer_id, m.producer_epoch, m.transaction_number)
              > (coalesce(in_after[1], -1), coalesce(in_after[2], -1), coalesce(in_after[3], -1))
        order by m.producer_id, m.producer_epoch, m.transaction_number limit most),
    looked as (
        select c.*, d.outcome as decided, d.first_offset as decided_first, d.last_offset as decided_last, floor.stable_floor,
               array_remove(array[
                   case when c.outcome not in ('COMMIT', 'ABORT') or c.outcome <> d.outcome then 'marker_outcome' end,
                   case when d.outcome is not null
                          and (c.first_offset, c.last_offset) is distinct from (d.first_offset, d.last_offset)
                        then 'marker_span' end,
                   case when d.outcome is null
                          and (t.opened_at is not null or c.last_offset < floor.stable_floor is not true)
                        then 'marker_without_decision' end], null) as rules
        from chunk c
        left join lateral msgtx.floor_of(in_partition_id) floor on true
        left join lateral msgtx.decided_here(
            in_partition_id, c.producer_id, c.producer_epoch, c.transaction_number) d on true
        left join lateral msgtx.transaction_of(c.producer_id, c.producer_epoch, c.transaction_number) t on true)
    select max(array[l.producer_id, l.producer_epoch, l.transaction_number]), count(*),
           coalesce(jsonb_agg(to_jsonb(l) order by l.first_offset) filter (where l.rules <> '{}'), '[]')
    into next_after, looked_at, broken
    from looked l;
end $$;
