-- base_offset_of(partition, offset) → the base offset of the row that holds an offset, else the offset: from where on a
-- reader looks at rows. An index on base_offset alone cannot say in which row an offset lies. Reads record_batch.
-- right: consume
-- plan: look-ups
create function msgtx.base_offset_of(in_partition_id int, in_offset bigint) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', array[in_partition_id]);
    return coalesce((
        select r.base_offset from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.base_offset <= in_offset
        order by r.base_offset desc limit 1), in_offset);
end $$;
