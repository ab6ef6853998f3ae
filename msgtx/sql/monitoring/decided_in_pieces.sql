-- decided_in_pieces(topics, begins, pieces, piece_ms) → how many transactions with records in these topics (null: in any)
-- were decided in each piece of time since `begins`; see measure_activity. Up to 20,000 decisions are counted, as many of
-- each piece. A piece with more is estimated from some moments, spread evenly: how long the next decisions take from there
-- tells how many there are at that moment. Reads partition, transaction_decision.
-- plan: look-ups, nested loops
create function msgtx.decided_in_pieces(topics int[], begins timestamptz, pieces int, piece_ms bigint)
returns table (at int, committed bigint, aborted bigint, estimated boolean) language plpgsql stable as $$
#variable_conflict use_column
declare
    rows_of_piece constant int := greatest(20000 / pieces, 32);
    moments constant int := 8;
    rows_of_moment constant int := greatest(rows_of_piece / moments, 2);
    now_at constant timestamptz := msgtx.clock();
begin
    return query
    with counted as materialized (
        select i as at, p.first, p.last, n.*
        from generate_series(0, pieces - 1) i
        cross join lateral (
            select begins + i * piece_ms * interval '1 ms' as first, begins + (i + 1) * piece_ms * interval '1 ms' as last) p
        cross join lateral (
            select count(*) as looked, count(*) filter (where d.outcome = 'COMMIT' and d.counts) as committed,
                   count(*) filter (where d.outcome = 'ABORT' and d.counts) as aborted
            from msgtx.decisions_from(p.first, p.last, rows_of_piece, topics) d) n),
    estimated as (
        -- The moment lies within the time of a decision, on average in its middle.
        select c.at, avg(n.committed / n.seconds) * share.of_rows * extract(epoch from p.length) as committed,
               avg(n.aborted / n.seconds) * share.of_rows * extract(epoch from p.length) as aborted
        from counted c
        cross join lateral (select least(c.last, now_at) - c.first as length) p
        cross join generate_series(1, moments) i
        cross join lateral (select c.first + p.length * ((i - 0.5) / moments) as first) m
        cross join lateral (
            select count(*) filter (where d.outcome = 'COMMIT' and d.counts) as committed,
                   count(*) filter (where d.outcome = 'ABORT' and d.counts) as aborted,
                   greatest(extract(epoch from case when count(*) = rows_of_moment then max(d.decided_at) else now_at end
                                               - m.first), 0.000001)::float8 as seconds
            from msgtx.decisions_from(m.first, 'infinity', rows_of_moment, topics) d) n
        cross join (select 1 - 0.5 / rows_of_moment as of_rows) share
        where c.looked = rows_of_piece
        group by c.at, p.length, share.of_rows)
    select c.at, greatest(c.committed, round(e.committed))::bigint, greatest(c.aborted, round(e.aborted))::bigint,
           e.at is not null
    from counted c left join estimated e on e.at = c.at;
end $$;
