-- last_stable_offset(partition) → the first offset of its earliest undecided transaction, else the log end; for views.
-- right: consume
create function msgtx.last_stable_offset(in_partition_id int) returns bigint language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select f.last_stable_offset
        from msgtx.fetch_batches(array[in_partition_id], array[0::bigint], array[null::text], 'read_committed', 0, 0) f);
end $$;
