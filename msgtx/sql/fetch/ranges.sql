-- ranges(cut, pieces, start) → the offsets of a cut in about so many ranges, none empty, each of one partition; and for each
-- a condition that selects its records from committed_records_now, for one task of spark.read.jdbc or another program.
--   start       another cut: each partition from its end there; null, or a partition that it lacks: from the log start
--   pieces      a partition has at least one range; large ones are divided in proportion to their offsets
--   predicate   also compares the range with the cut, in the snapshot of its own statement: check_range raises if records
--               were removed, or are not there (yet) on a replica
-- Reads through cut_ends; partition.
-- right: consume
-- plan: look-ups
create function msgtx.ranges(cut text, pieces int default 1, start text default null)
returns table (topic text, partition int, start_offset bigint, end_offset bigint, predicate text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most_pieces constant int := 10000;  -- each is a task and a statement
    ids constant int[] := array(select e.partition_id from msgtx.cut_ends(ranges.cut, 'cut') e);
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', ids);
begin
    if pieces between 1 and most_pieces is not true then
        raise exception using errcode = 'MX042', message = format('pieces is 1 to %s, not %s', most_pieces, pieces),
            detail = jsonb_build_object('name', 'pieces', 'given', pieces, 'limit', most_pieces);
    end if;
    return query
    with whole as (
        select e.topic, e.partition, e.partition_id, b.first, e.end_offset as last, e.end_offset - b.first as size,
               sum(e.end_offset - b.first) over () as total
        from msgtx.cut_ends(ranges.cut, 'cut') e
        left join msgtx.cut_ends(coalesce(ranges.start, split_part(ranges.cut, ' ', 1)), 'start') s
            on s.partition_id = e.partition_id  -- without a start: a cut of nothing
        cross join lateral (
            select coalesce(s.end_offset, (
                select p.log_start_offset from msgtx.partition p where p.partition_id = e.partition_id), 0) as first) b
        where b.first < e.end_offset),
    piece as (
        select w.topic, w.partition, w.partition_id,
               w.first + (w.size::numeric * n.at / d.pieces)::bigint as first,
               w.first + (w.size::numeric * (n.at + 1) / d.pieces)::bigint as last
        from whole w
        cross join lateral (select greatest(round(w.size * ranges.pieces / w.total), 1)::int as pieces) d
        cross join lateral generate_series(0, d.pieces - 1) n(at)),
    checked as (
        select p.*, format('msgtx.check_range(%s, %s, %s, %L, true)', p.partition_id, p.first, p.last,
                           split_part(ranges.cut, ' ', 1)) as test
        from piece p where p.first < p.last)
    select c.topic, c.partition, c.first, c.last,
           format('%1$s is not null and partition_id = %2$s and base_offset >= %1$s and base_offset < %4$s'
                  ' and "offset" >= %3$s and "offset" < %4$s', c.test, c.partition_id, c.first, c.last)
    from checked c order by c.topic, c.partition, c.first;
end $$;
