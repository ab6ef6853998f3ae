-- verify_cut(partitions, ends, after, most) looks at the next decisions of the installation, by name, for verify, on one snapshot:
-- whether a committed transaction has records on both sides of a cut of these partitions (I15). → where it came to (null: the
-- end), how many rows, how many of them concern these partitions, and as JSON each partition of one that breaks a rule.
--   torn   records here are below the cut, and others of the transaction are not; or the other way round
-- What retention removed from the front of a log does not count. Decisions that came after the cut lie above it.
-- Reads transaction_decision, partition.
create function msgtx.verify_cut(
    partition_ids int[], ends bigint[], in_after bigint[], most int,
    out next_after bigint[], out looked_at bigint, out transactions bigint, out broken jsonb
) language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    with chunk as materialized (
        select d.producer_id, d.producer_epoch, d.transaction_number, d.outcome, d.partitions, d.first_offsets, d.last_offsets,
               d.partitions && partition_ids as concerned
        from msgtx.transaction_decision d
        where (d.producer_id, d.producer_epoch, d.transaction_number)
              > (coalesce(in_after[1], -1), coalesce(in_after[2], -1), coalesce(in_after[3], -1))
        order by d.producer_id, d.producer_epoch, d.transaction_number limit most),
    span as (
        select c.producer_id, c.producer_epoch, c.transaction_number, s.partition_id, s.first_offset, s.last_offset,
               ends[array_position(partition_ids, s.partition_id)] as cut_end,
               greatest(s.first_offset, p.log_start_offset) < ends[array_position(partition_ids, s.partition_id)] as below,
               s.last_offset >= ends[array_position(partition_ids, s.partition_id)] as above
        from chunk c
        cross join lateral unnest(c.partitions, c.first_offsets, c.last_offsets) s(partition_id, first_offset, last_offset)
        join msgtx.partition p on p.partition_id = s.partition_id
        where c.concerned and c.outcome = 'COMMIT' and s.partition_id = any(partition_ids)
          and s.last_offset >= p.log_start_offset),
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
