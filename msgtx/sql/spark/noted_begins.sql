-- noted_begins(group, partitions, offsets) → where the batch of a stream that ended at an offset began, for a run that
-- has only its checkpoint: committed_offset of the group; start_offset of a range that was noted for the group, ends at
-- the offset and begins where the group is (anywhere, if it is nowhere); repeats: a range begins at the offset, and the
-- group is at its end, so that its batch may be repeated. Reads spark_range.
-- right: consume
-- null: committed_offset, start_offset
-- plan: look-ups
create function msgtx.noted_begins(in_group_name text, partition_ids int[], offsets bigint[])
returns table (partition_id int, committed_offset bigint, start_offset bigint, repeats boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids);
        ignored := msgtx.require_names('group', array[in_group_name]);
    end if;
    return query
    select u.partition_id, c.committed_offset, ended.start_offset, coalesce(begun.found, false)
    from unnest(partition_ids, offsets) u(partition_id, at)
    left join msgtx.committed_offsets(in_group_name, partition_ids) c on c.partition_id = u.partition_id
    left join lateral (
        select r.start_offset from msgtx.spark_range r
        where r.group_name = in_group_name and r.partition_id = u.partition_id and r.end_offset = u.at
          and r.start_offset = coalesce(c.committed_offset, r.start_offset)
        limit 1) ended on true
    left join lateral (
        select true as found from msgtx.spark_range r
        where r.group_name = in_group_name and r.partition_id = u.partition_id and r.end_offset = c.committed_offset
          and r.start_offset = u.at
        limit 1) begun on true;
end $$;
