-- spans_of_transactions(partitions, starts, ends) → the committed transactions that have a row in one of these ranges, each
-- by the partitions (of those asked for) that it covers, and its first and last offsets there. A transaction of one row
-- inside its range is left out: moving the range's end to the beginning of another transaction cannot divide it.
-- STABLE: all of it is one snapshot. Work: the rows of the ranges, each looked at once, without its arrays.
-- Reads record_batch, transaction, transaction_decision, transaction_marker.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.spans_of_transactions(partition_ids int[], start_offsets bigint[], end_offsets bigint[])
returns table (partitions int[], first_offsets bigint[], last_offsets bigint[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- So that a partition is found without going through them.
    ids constant int[] := array(select u.id from unnest(partition_ids) u(id) order by u.id);
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids);
    end if;
    return query
    with place as materialized (
        select u.* from unnest(partition_ids, start_offsets, end_offsets) u(id, start_offset, end_offset)),
    met as materialized (
        select b.producer_id, b.producer_epoch, b.transaction_number, max(b.last_offset) as last_offset,
               count(*) > 1 or bool_or(b.base_offset < p.start_offset or b.last_offset >= p.end_offset) as loose
        from place p
        cross join lateral (
            select r.base_offset, r.last_offset, r.producer_id, r.producer_epoch, r.transaction_number
            from msgtx.record_batch r
            where r.partition_id = p.id and r.base_offset >= p.start_offset and r.base_offset < p.end_offset
            union all
            select w.* from (
                select r.base_offset, r.last_offset, r.producer_id, r.producer_epoch, r.transaction_number
                from msgtx.record_batch r
                where r.partition_id = p.id and r.base_offset < p.start_offset order by r.base_offset desc limit 1) w
            where w.last_offset >= p.start_offset and p.start_offset < p.end_offset) b
        where b.transaction_number is not null
        group by b.producer_id, b.producer_epoch, b.transaction_number),
    span as (
        select m.producer_id, m.producer_epoch, m.transaction_number, s.id, s.first_offset, s.last_offset
        from met m
        cross join lateral (
            select d.outcome, d.partitions, d.first_offsets, d.last_offsets from msgtx.transaction_decision d
            where d.producer_id = m.producer_id and d.producer_epoch = m.producer_epoch
              and d.transaction_number = m.transaction_number limit 1) d
        cross join lateral unnest(d.partitions, d.first_offsets, d.last_offsets) s(id, first_offset, last_offset)
        where d.outcome = 'COMMIT' and ids[width_bucket(s.id, ids)] = s.id
          and (m.loose or cardinality(d.partitions) > 1 or d.last_offsets[1] > m.last_offset)
        union all
        -- Its history is gone: it was decided long ago, and its rows show where it is.
        select m.producer_id, m.producer_epoch, m.transaction_number, p.id, gone.first_offset, gone.last_offset
        from met m
        cross join place p
        cross join lateral (
            select min(r.base_offset) as first_offset, max(r.last_offset) as last_offset from msgtx.record_batch r
            where r.partition_id = p.id and r.producer_id = m.producer_id and r.producer_epoch = m.producer_epoch
              and r.transaction_number = m.transaction_number) gone
        where gone.first_offset is not null
          and (select true from msgtx.transaction_decision d
               where d.producer_id = m.producer_id and d.producer_epoch = m.producer_epoch
                 and d.transaction_number = m.transaction_number) is null
          and (select true from msgtx.transaction t
               where t.producer_id = m.producer_id and t.producer_epoch = m.producer_epoch
                 and t.transaction_number = m.transaction_number) is null
          and (select true from msgtx.transaction_marker k
               where k.partition_id = p.id and k.producer_id = m.producer_id and k.producer_epoch = m.producer_epoch
                 and k.transaction_number = m.transaction_number and k.outcome = 'ABORT') is null)
    select array_agg(s.id), array_agg(s.first_offset), array_agg(s.last_offset)
    from span s group by s.producer_id, s.producer_epoch, s.transaction_number;
end $$;
