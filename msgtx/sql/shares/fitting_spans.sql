-- fitting_spans(partition, spans, max_bytes) → the first of these spans, with records of at most so many bytes, and these
-- bytes: at least one record, the last span only as far as it fits. Each record of a row of the log counts as the others of
-- the row do. Reads record_batch.
create function msgtx.fitting_spans(in_partition_id int, inout spans msgtx.share_span[], max_bytes bigint, out bytes bigint)
language sql stable as $$
    with pieces as materialized (
        select r.place, r.begins, r.each, r.records, case when r.before < max_bytes then
                   least(r.records, greatest(1, ceil((max_bytes - r.before) / greatest(r.each, 1))))::bigint
                       else 0 end as fitting
        from (
            select o.*, coalesce(sum(o.records * o.each) over (
                       order by o.place, o.begins rows between unbounded preceding and 1 preceding), 0) as before
            from (
                select s.place, greatest(b.base_offset, s.first_offset) as begins,
                       least(b.last_offset, s.last_offset) - greatest(b.base_offset, s.first_offset) + 1 as records,
                       b.byte_size::float8 / (b.last_offset - b.base_offset + 1) as each
                from unnest(spans) with ordinality s(first_offset, last_offset, status, delivery_count, member_number,
                    call_number, locked_until, producer_id, producer_epoch, transaction_number, answer, reason, place)
                cross join lateral msgtx.rows_between(in_partition_id, s.first_offset, s.last_offset) b) o) r
    ), cut as (
        select p.place, p.begins + p.fitting as next_offset from pieces p
        where p.fitting < p.records order by p.place, p.begins limit 1
    )
    select array(
               select row(
                   s.first_offset, case when s.place = c.place then c.next_offset - 1 else s.last_offset end, s.status,
                   s.delivery_count, s.member_number, s.call_number, s.locked_until, s.producer_id, s.producer_epoch,
                   s.transaction_number, s.answer, s.reason)::msgtx.share_span
               from unnest(spans) with ordinality s(first_offset, last_offset, status, delivery_count, member_number,
                   call_number, locked_until, producer_id, producer_epoch, transaction_number, answer, reason, place)
               left join cut c on true
               where (s.place > c.place or s.place = c.place and s.first_offset >= c.next_offset) is not true
               order by s.place),
           coalesce((select sum(p.fitting * p.each) from pieces p), 0)::bigint
$$;
