-- first_begins(partitions, ends) → where the first batch of a stream began that ended at these offsets, as its source noted
-- before Spark knew of the batch: the checkpoint of a first batch tells only its end. Of several streams with the same
-- end, the earliest begin: a record is rather read by one that began later than by none. Reads spark_range.
-- right: consume
-- plan: look-ups
create function msgtx.first_begins(partition_ids int[], end_offsets bigint[])
returns table (partition_id int, start_offset bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', partition_ids);
begin
    return query
    select u.partition_id, r.start_offset
    from unnest(partition_ids, end_offsets) u(partition_id, end_offset)
    cross join lateral (
        select r.start_offset from msgtx.spark_range r
        where r.group_name = '' and r.partition_id = u.partition_id and r.end_offset = u.end_offset
          and r.source_id = 'begin'
        order by r.start_offset limit 1) r;
end $$;
