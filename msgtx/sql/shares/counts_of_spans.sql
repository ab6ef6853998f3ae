-- counts_of_spans(spans, delivery_limit) → how many offsets these spans have in each state, and the first one; exhausted: of
-- the available ones, those that were delivered as often as they may be.
create function msgtx.counts_of_spans(spans msgtx.share_span[], delivery_limit int)
returns table (
    start_offset bigint, available bigint, acquired bigint, pending bigint, rejected bigint, exhausted bigint)
language sql stable as $$
    select min(s.first_offset), coalesce(sum(s.count) filter (where s.status = 'available'), 0)::bigint,
           coalesce(sum(s.count) filter (where s.status = 'acquired'), 0)::bigint,
           coalesce(sum(s.count) filter (where s.status = 'pending'), 0)::bigint,
           coalesce(sum(s.count) filter (where s.status = 'rejected'), 0)::bigint,
           coalesce(sum(s.count) filter (where s.status = 'available' and s.delivery_count >= delivery_limit), 0)::bigint
    from (select u.*, u.last_offset - u.first_offset + 1 as count from unnest(spans) u) s
$$;
