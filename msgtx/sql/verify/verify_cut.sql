-- verify_cut(partitions, ends, after, most) looks at the next decisions of the installation, by name, for verify, on one
-- snapshot: whether a committed transaction has records on both sides of a cut of these partitions (I15). → where it came to
-- (null: the end), how many rows, how many of them concern these partitions, and as JSON each partition of one that breaks a
-- rule.
--   torn   records here are below the cut, and others of the transaction are not; or the other way round
-- Rows that retention removed from the front of a log do not count. Decisions that came after the cut lie above it.
-- Reads transaction_decision, partition.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.verify_cut(
    partition_ids int[], ends bigint[], in_after bigint[], most int,
    out next_after bigint[], out looked_at bigint, out transactions bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    ids int[];  -- ascending, so that a partition's place is found without going through them
    cut_ends bigint[];
begin
    select array_agg(u.id order by u.id), array_agg(u.cut_end order by u.id) into ids, cut_ends
    from unnest(partition_ids, ends) u(id, cut_end);
    with chunk as materialized (
        select d.*,
               exists (select from unnest(d.partitions) u(id) where ids[width_bucket(u.id, ids)] = u.id) as concerned
        from msgtx.transaction_decision d
        where (d.producer_id, d.producer_epoch, d.transaction_number)
              > (coalesce(in_after[1], -1), coalesce(in_after[2], -1), coalesce(in_after[3], -1))
        order by d.producer_id, d.producer_epoch, d.transaction_number limit most),
    span as (
        select c.producer_id, c.producer_epoch, c.transaction_number, s.partition_id, s.first_offset, s.last_offset,
               at.cut_end, greatest(s.first_offset, p.log_start_offset) < at.cut_end as below,
                   s.last_offset >= at.cut_end as above
        from chunk c
        cross join lateral unnest(c.partitions, c.first_offsets, c.last_offsets) s(partition_id, first_offset, last_offset)
        cross join lateral (
            select cut_ends[w.at] as cut_end from (select width_bucket(s.partition_id, ids) as at offset 0) w
            where ids[w.at] = s.partition_id offset 0) at
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = s.partition_id limit 1) p
        where c.concerned and c.outcome = 'COMMIT' and s.last_offset >= p.log_start_offset),
    looked as (
        select s.*, case when bool_or(s.below) over whole and bool_or(s.above) over whole then '{torn}' else '{}' end::text[]
                    as rules
        from span s
        window whole as (partition by s.producer_id, s.producer_epoch, s.transaction_number))
    select (select max(array[c.producer_id, c.producer_epoch, c.transaction_number]) from chunk c),
           (select count(*) from chunk c), (select count(*) from chunk c where c.concerned),
           coalesce(jsonb_agg(to_jsonb(l) order by l.partition_id, l.first_offset) filter (where l.rules <> '{}'), '[]')
    into next_after, looked_at, transactions, broken
    from looked l;
end $$;
