-- read_records(partitions, first_offsets, last_offsets) → the records of the log in these ranges, as records_at.
-- acquire_records leaves them out, because its answer is sent while it holds locks. This one holds none. Reads
-- record_batch.
-- right: consume
-- null: offsets, keys[], values[], header_values[], header_counts, header_keys, header_values, keys, timestamps
-- plan: look-ups, nested loops
create function msgtx.read_records(partition_ids int[], first_offsets bigint[], last_offsets bigint[])
returns table (
    place int, first_offset bigint, last_offset bigint, max_timestamp bigint, offsets bigint[],
    keys bytea[], "values" bytea[], timestamps bigint[], header_counts int[], header_keys text[], header_values bytea[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', partition_ids);
    return query
    select r.place::int, r.first_offset, r.last_offset, r.max_timestamp, r.offsets, r.keys, r."values", r.timestamps,
        r.header_counts, r.header_keys, r.header_values
    from msgtx.records_at(partition_ids, read_records.first_offsets, read_records.last_offsets, null) r;
end $$;
