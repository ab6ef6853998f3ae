-- record_wal_bytes() → about how many bytes of WAL a record takes, by the last rows of up to 1,000 partitions, spread
-- evenly; null: nothing is stored. Columns as they are stored, compressed, and what a row takes besides.
-- Reads partition, record_batch.
-- right: observe of all topics
-- null: value
-- plan: look-ups, nested loops
create function msgtx.record_wal_bytes() returns float8
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    looked_at constant bigint := 1000;
    row_bytes constant int := 300;  -- its other columns, its headers, the entries of two indexes
begin
    return (
        select sum(row_bytes + coalesce(pg_column_size(r.keys), 0) + pg_column_size(r."values")
                   + coalesce(pg_column_size(r.timestamps), 0) + coalesce(pg_column_size(r.header_values), 0))::float8
               / nullif(sum(r.record_count), 0)
        from (
            select p.partition_id, row_number() over (order by p.partition_id) as place, count(*) over () as total
            from msgtx.partition p) n
        cross join lateral msgtx.last_row_of(n.partition_id) r
        where n.place * least(n.total, looked_at) / n.total > (n.place - 1) * least(n.total, looked_at) / n.total);
end $$;
