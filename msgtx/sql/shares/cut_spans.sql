-- cut_spans(spans, ranges, answers) → spans and answered ranges, cut wherever one of them begins or ends: each piece lies in
-- one span or none (`span` is this part of it), and has one answer or none; at_answer: which one of the answers it is. Spans
-- and ranges ascend and do not overlap. Hash joins, with any settings of the caller: a nested loop over 2,000 spans takes
-- 0.4 s, a hash join 5 ms.
create function msgtx.cut_spans(spans msgtx.share_span[], first_offsets bigint[], last_offsets bigint[], answers text[])
returns table (first_offset bigint, last_offset bigint, span msgtx.share_span, answer text, at_answer int)
language plpgsql immutable set plan_cache_mode = force_generic_plan set jit = off set enable_hashjoin = on as $$
#variable_conflict use_column
begin
    return query
    select p.first_offset, p.last_offset,
           case when s.last_offset >= p.first_offset then row(
               p.first_offset, p.last_offset, s.status, s.delivery_count, s.member_number, s.call_number, s.locked_until,
               s.producer_id, s.producer_epoch, s.transaction_number, s.answer, s.reason)::msgtx.share_span end,
           case when a.last_offset >= p.first_offset then a.answer end,
           case when a.last_offset >= p.first_offset then a.place::int end
    from (
        -- Of an edge, the span and the range that began last: if it is over, its end lies in front of the edge.
        select e.edge as first_offset, lead(e.edge) over along - 1 as last_offset,
               max(e.at_span) over along as at_span, max(e.at_answer) over along as at_answer
        from (
            select u.edge, max(u.at_span) as at_span, max(u.at_answer) as at_answer
            from (
                select s.first_offset as edge, s.place as at_span, null::bigint as at_answer
                from unnest(spans) with ordinality s(first_offset, last_offset, status, delivery_count, member_number,
                    call_number, locked_until, producer_id, producer_epoch, transaction_number, answer, reason, place)
                union all select s.last_offset + 1, null, null from unnest(spans) s
                union all select f.edge, null, f.place from unnest(first_offsets) with ordinality f(edge, place)
                union all select l.edge + 1, null, null from unnest(last_offsets) l(edge)) u
            group by u.edge) e
        window along as (order by e.edge)) p
    left join unnest(spans) with ordinality s(first_offset, last_offset, status, delivery_count, member_number, call_number,
            locked_until, producer_id, producer_epoch, transaction_number, answer, reason, place) on s.place = p.at_span
    left join unnest(first_offsets, last_offsets, answers) with ordinality a(first_offset, last_offset, answer, place)
        on a.place = p.at_answer
    where p.last_offset is not null and (s.last_offset >= p.first_offset or a.last_offset >= p.first_offset);
end $$;
