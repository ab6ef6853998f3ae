-- share_start_offsets(group, partitions, moment) → the first offsets of a share group in partitions of a topic that is
-- new to it: their start, their decided end, or the first record of a duration before this moment (auto_offset_reset).
-- Times begin with 1970: a duration that goes further back takes everything, and no length of it is out of PostgreSQL's
-- range. Reads partition, record_batch, partition_floor, transaction tables.
create function msgtx.share_start_offsets(g msgtx.share_group, partition_ids int[], moment timestamptz)
returns table (partition_id int, start_offset bigint) language plpgsql stable as $$
#variable_conflict use_column
declare
    since constant bigint := case when g.auto_offset_reset like 'by_duration:%' then greatest(0, floor(extract(
        epoch from moment - least(split_part(g.auto_offset_reset, ':', 2)::interval, interval '1000 years')) * 1000)) end;
begin
    if g.auto_offset_reset = 'earliest' then
        return query
        select p.partition_id, p.log_start_offset from unnest(partition_ids) u
        cross join lateral (select p.* from msgtx.partition p where p.partition_id = u limit 1) p;
    elsif g.auto_offset_reset = 'latest' then
        return query
        select f.partition_id, f.last_stable_offset from msgtx.log_ends(partition_ids, 'read_committed') f;
    else
        return query
        select l.partition_id, coalesce(l.at_offset, l.last_stable_offset)
        from msgtx.list_offsets(partition_ids, array_fill(since, array[cardinality(partition_ids)]), g.isolation) l;
    end if;
end $$;
