-- verify_beginnings(partition, after, most) looks at the next beginnings of transactions on a partition, for verify, on one
-- snapshot. → the last one (first offset and name; null: the end), how many rows, how many undecided transactions (each
-- counts on its least partition), and as JSON each row that breaks a rule, with the rules' names.
--   decision_start      the decision names another first offset, or not this partition
--   floor_passed_open   the floor is above an undecided transaction      transaction_row   undecided, and nothing can end it
--   open_without_batch  undecided, and its first batch is not there
-- Reads transaction_partition, transaction_decision, transaction_seal, transaction, partition_floor, record_batch.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.verify_beginnings(
    in_partition_id int, in_after bigint[], most int,
    out next_after bigint[], out looked_at bigint, out undecided bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    with chunk as materialized (
        select tp.* from msgtx.transaction_partition tp
        where tp.partition_id = in_partition_id
          and (tp.first_offset, tp.producer_id, tp.producer_epoch, tp.transaction_number)
              > (coalesce(in_after[1], -1), coalesce(in_after[2], -1), coalesce(in_after[3], -1), coalesce(in_after[4], -1))
        order by tp.first_offset, tp.producer_id, tp.producer_epoch, tp.transaction_number limit most),
    looked as (
        select c.*, d.outcome, d.first_offset as decided_first, floor.stable_floor,
               d.outcome is null and c.partition_id = (
                   select min(o.partition_id) from msgtx.transaction_partition o
                   where o.producer_id = c.producer_id and o.producer_epoch = c.producer_epoch
                     and o.transaction_number = c.transaction_number) as counted,
               array_remove(array[
                   case when d.outcome is not null and d.first_offset is distinct from c.first_offset
                        then 'decision_start' end,
                   case when d.outcome is null and c.first_offset < floor.stable_floor then 'floor_passed_open' end,
                   case when d.outcome is null and t.opened_at is null then 'transaction_row' end,
                   case when d.outcome is null and r.here is null then 'open_without_batch' end], null) as rules
        from chunk c
        left join lateral msgtx.floor_of(in_partition_id) floor on true
        left join lateral msgtx.decided_here(
            in_partition_id, c.producer_id, c.producer_epoch, c.transaction_number) d on true
        left join lateral msgtx.transaction_of(c.producer_id, c.producer_epoch, c.transaction_number) t on true
        left join lateral (
            select true as here from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset = c.first_offset and r.producer_id = c.producer_id
              and r.producer_epoch = c.producer_epoch and r.transaction_number = c.transaction_number limit 1) r on true)
    select max(array[l.first_offset, l.producer_id, l.producer_epoch, l.transaction_number]), count(*),
           count(*) filter (where l.counted),
           coalesce(jsonb_agg(to_jsonb(l) order by l.first_offset) filter (where l.rules <> '{}'), '[]')
    into next_after, looked_at, undecided, broken
    from looked l;
end $$;
