-- stored_in_pieces(topics, begins, pieces, piece_ms) → the records stored in each piece of time since `begins`, in these
-- topics (null: in all); see measure_activity. Looks at the last row of 10,000 partitions, spread evenly. Of those that
-- were written to since, it searches the logs of some for the offsets at which pieces begin: all boundaries at once, by
-- halves, because appended_at has no index and grows with the offset. Reads partition, record_batch.
-- plan: look-ups, nested loops
create function msgtx.stored_in_pieces(topics int[], begins timestamptz, pieces int, piece_ms bigint)
returns table (at int, records bigint, removed bigint, estimated boolean) language plpgsql stable as $$
#variable_conflict use_column
declare
    looked_at constant bigint := 10000;  -- partitions: some 30 ms
    searched constant bigint := least(greatest(1500 / pieces, 4), 200);  -- partitions: a boundary takes 10 look-ups
begin
    return query
    with recursive numbered as (
        select p.partition_id, p.log_start_offset, count(*) over () as total,
               row_number() over (order by p.partition_id) as place
        from msgtx.partition p where topics is null or p.topic_id = any(topics)),
    looked as materialized (
        select n.partition_id, n.log_start_offset, newest.last_offset, newest.appended_at,
               n.total::float8 / least(n.total, looked_at) as weight
        from numbered n
        left join lateral (
            select r.last_offset, r.appended_at from msgtx.last_row_of(n.partition_id) r) newest on true
        where n.place * least(n.total, looked_at) / n.total > (n.place - 1) * least(n.total, looked_at) / n.total),
    written as (
        select l.*, count(*) over () as total, row_number() over (order by l.partition_id) as place
        from looked l where l.appended_at >= begins),
    chosen as materialized (
        select w.partition_id, w.last_offset + 1 as log_end, oldest.base_offset as log_begin,
               case when oldest.base_offset > 0 then oldest.appended_at end as gone_upto,
               w.weight * w.total / least(w.total, searched) as weight
        from written w
        cross join lateral (
            select r.base_offset, r.appended_at from msgtx.record_batch r
            where r.partition_id = w.partition_id order by r.base_offset limit 1) oldest
        where w.place * least(w.total, searched) / w.total > (w.place - 1) * least(w.total, searched) / w.total),
    -- Boundaries first to last of a log lie at offsets from low to high. The row in the middle divides them: those up to
    -- `front.at` are in front of it, the others behind it.
    search(partition_id, low, high, first, last) as (
        select c.partition_id, c.log_begin, c.log_end, 0, pieces from chosen c
        union all
        select s.partition_id, half.low, half.high, half.first, half.last
        from search s
        cross join lateral (
            select r.base_offset, r.last_offset, r.appended_at from msgtx.record_batch r
            where r.partition_id = s.partition_id and r.base_offset <= (s.low + s.high) / 2
            order by r.base_offset desc limit 1) middle
        cross join lateral (
            select greatest(least(
                floor(extract(epoch from middle.appended_at - begins) * 1000 / piece_ms), pieces), -1)::int as at) front
        cross join lateral (
            values (s.low, middle.base_offset, s.first, least(s.last, front.at)),
                   (greatest((s.low + s.high) / 2, middle.last_offset) + 1, s.high, greatest(s.first, front.at + 1), s.last)
            ) half(low, high, first, last)
        where s.low < s.high and half.first <= half.last),
    boundary as (
        select s.partition_id, b.at, s.low as first_offset,
               lead(s.low) over (partition by s.partition_id order by b.at) as next_offset
        from search s cross join lateral generate_series(s.first, s.last) b(at)
        where s.low >= s.high),
    summed as materialized (
        select b.at, sum((b.next_offset - b.first_offset) * c.weight) filter (where not gone.here) as records,
               sum(c.weight) filter (where gone.here) as removed
        from boundary b
        cross join lateral (select c.* from chosen c where c.partition_id = b.partition_id limit 1) c
        cross join lateral (
            select coalesce(c.gone_upto >= begins + b.at * piece_ms * interval '1 ms', false) as here) gone
        group by b.at)
    select i, coalesce(round(s.records), 0)::bigint, round(coalesce(s.removed, 0) + emptied.partitions)::bigint,
           exists (select from looked l where l.weight > 1) or exists (select from chosen c where c.weight > 1)
    from generate_series(0, pieces - 1) i
    cross join (
        select coalesce(sum(l.weight), 0) as partitions from looked l
        where l.last_offset is null and l.log_start_offset > 0) emptied
    left join summed s on s.at = i;
end $$;
