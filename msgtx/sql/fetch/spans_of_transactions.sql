-- spans_of_transactions(partitions, starts, ends) → the committed transactions with a row in one of these ranges. For each:
-- its partitions among these, and its first and last offset on each. A transaction of one row inside its range is left out:
-- moving the range's end to the beginning of another transaction cannot divide it. STABLE: all of it is one snapshot. Work:
-- the rows of the ranges, each looked at once, without its arrays. Reads record_batch, transaction, transaction_decision,
-- transaction_marker.
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
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', partition_ids);
    return query
    with met as materialized (
        select b.producer_id, b.producer_epoch, b.transaction_number, max(b.last_offset) as last_offset,
               count(*) > 1 or bool_or(b.base_offset < p.start_offset or b.last_offset >= p.end_offset) as loose
        from unnest(partition_ids, start_offsets, end_offsets) p(id, start_offset, end_offset)
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
        cross join lateral msgtx.spans_of(m.producer_id, m.producer_epoch, m.transaction_number, ids) s
        where ids[width_bucket(s.id, ids)] = s.id
          and (m.loose or s.partitions > 1 or s.last_offset > m.last_offset) is not false)
    select array_agg(s.id), array_agg(s.first_offset), array_agg(s.last_offset)
    from span s group by s.producer_id, s.producer_epoch, s.transaction_number;
end $$;
