-- readable_ranges(partitions, positions, isolation) → from where to where a reader at a position may read, per partition; an
-- unknown one is absent. The ends are asked once for all: for each partition alone it takes ten times as long. Both lists
-- are in order of the partitions, so nothing is joined. Reads partition and what log_ends does.
-- plan: look-ups
create function msgtx.readable_ranges(partition_ids int[], positions bigint[], isolation text)
returns table (partition_id int, start_offset bigint, readable_end bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    known int[];
    asked bigint[];
    starts bigint[];
    ends bigint[];
begin
    select coalesce(array_agg(a.partition_id order by a.partition_id), '{}'), array_agg(a.position order by a.partition_id)
    into known, asked
    from (select a.partition_id, a.position from unnest(partition_ids, positions) a(partition_id, position)
          where exists (select from msgtx.partition p where p.partition_id = a.partition_id) offset 0) a;
    select array_agg(e.log_start_offset order by e.partition_id), array_agg(e.readable_end order by e.partition_id)
    into starts, ends
    from (select e.* from msgtx.log_ends(known, readable_ranges.isolation) e offset 0) e;
    return query
    select u.partition_id, greatest(u.position, u.log_start_offset), u.readable_end
    from unnest(known, asked, starts, ends) u(partition_id, position, log_start_offset, readable_end);
end $$;
