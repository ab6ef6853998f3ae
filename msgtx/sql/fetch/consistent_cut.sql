-- consistent_cut(partitions) → per partition, ascending, its log start and the greatest end such that no committed transaction
-- has records on both sides, over all these partitions (I15); nothing is above a last stable offset. held_…: the transaction
-- that lowered the end below the last stable offset, null if none did. Records below a log start do not count. Cuts of the same
-- partitions only move forward: consistent ends are closed under maximum.
-- STABLE: all of it is one snapshot. Work: the rows between the cut and the log ends, each looked at once, without its arrays.
-- Reads record_batch, transaction, transaction_decision, transaction_marker and, through fetch_batches, what that reads.
create function msgtx.consistent_cut(partition_ids int[])
returns table (
    partition_id int, log_start_offset bigint, end_offset bigint,
    held_producer_id bigint, held_epoch int, held_number bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
    asked constant int[] := array(select distinct u from unnest(partition_ids) u);
    ids int[];
    starts bigint[];
    ends bigint[];
    looked_from bigint[];  -- rows from here on were looked at
    lowered bigint[];
    producer_ids bigint[];
    epochs int[];
    numbers bigint[];
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume,admin}', partition_ids);
    end if;
    select array_agg(l.partition_id order by l.partition_id), array_agg(l.log_start_offset order by l.partition_id),
           array_agg(l.last_stable_offset order by l.partition_id), array_agg(l.log_end_offset order by l.partition_id)
    into ids, starts, ends, looked_from
    from msgtx.fetch_batches(
        asked, array_fill(0::bigint, array[cardinality(asked)]), array_fill(null::text, array[cardinality(asked)]),
        'read_committed', 0, 0) l;
    if ids is null then
        return;
    end if;
    loop
        with place as materialized (
            select p.* from unnest(ids, starts, ends, looked_from, producer_ids, epochs, numbers) with ordinality
                p(id, start_offset, upto, looked, producer_id, epoch, number, ordinal)),
        above as materialized (
            select distinct b.producer_id, b.producer_epoch, b.transaction_number
            from place p
            cross join lateral (
                select r.producer_id, r.producer_epoch, r.transaction_number from msgtx.record_batch r
                where r.partition_id = p.id and r.base_offset >= p.upto and r.base_offset < p.looked
                union all
                select w.producer_id, w.producer_epoch, w.transaction_number from (
                    select r.last_offset, r.producer_id, r.producer_epoch, r.transaction_number from msgtx.record_batch r
                    where r.partition_id = p.id and r.base_offset < p.upto order by r.base_offset desc limit 1) w
                where w.last_offset >= p.upto) b
            where b.transaction_number is not null),
        span as (
            select a.*, s.id, s.first_offset, s.last_offset
            from above a
            cross join lateral (
                select d.outcome, d.partitions, d.first_offsets, d.last_offsets from msgtx.transaction_decision d
                where d.producer_id = a.producer_id and d.producer_epoch = a.producer_epoch
                  and d.transaction_number = a.transaction_number limit 1) d
            cross join lateral unnest(d.partitions, d.first_offsets, d.last_offsets) s(id, first_offset, last_offset)
            where d.outcome = 'COMMIT'
            union all
            -- Its history is gone: it was decided long ago, and its rows show where it is.
            select a.*, p.id, gone.first_offset, gone.last_offset
            from above a
            cross join place p
            cross join lateral (
                select min(r.base_offset) as first_offset, max(r.last_offset) as last_offset from msgtx.record_batch r
                where r.partition_id = p.id and r.producer_id = a.producer_id and r.producer_epoch = a.producer_epoch
                  and r.transaction_number = a.transaction_number) gone
            where gone.first_offset is not null
              and (select true from msgtx.transaction_decision d
                   where d.producer_id = a.producer_id and d.producer_epoch = a.producer_epoch
                     and d.transaction_number = a.transaction_number) is null
              and (select true from msgtx.transaction t
                   where t.producer_id = a.producer_id and t.producer_epoch = a.producer_epoch
                     and t.transaction_number = a.transaction_number) is null
              and (select true from msgtx.transaction_marker m
                   where m.partition_id = p.id and m.producer_id = a.producer_id and m.producer_epoch = a.producer_epoch
                     and m.transaction_number = a.transaction_number and m.outcome = 'ABORT') is null),
        crossing as (
            select distinct on (p.ordinal) p.ordinal, greatest(s.first_offset, p.start_offset) as upto,
                   s.producer_id, s.producer_epoch, s.transaction_number
            from span s join place p on p.id = s.id
            where s.first_offset < p.upto and s.last_offset >= p.start_offset and p.upto > p.start_offset
            order by p.ordinal, s.first_offset)
        select array_agg(coalesce(c.upto, p.upto) order by p.ordinal),
               array_agg(coalesce(c.producer_id, p.producer_id) order by p.ordinal),
               array_agg(coalesce(c.producer_epoch, p.epoch) order by p.ordinal),
               array_agg(coalesce(c.transaction_number, p.number) order by p.ordinal)
        into lowered, producer_ids, epochs, numbers
        from place p left join crossing c on c.ordinal = p.ordinal;
        exit when lowered is not distinct from ends;
        looked_from := ends;
        ends := lowered;
    end loop;
    return query
    select r.* from unnest(ids, starts, ends, producer_ids, epochs, numbers) r(a, b, c, d, e, f);
end $$;
