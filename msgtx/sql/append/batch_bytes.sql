-- batch_bytes(keys, values, header_keys, header_values) → the bytes of these columns: the byte_size of a batch, and a bound
-- for each of its records. STABLE, as pg_column_size is: declared stricter, it would not become part of the calling
-- statement.
create function msgtx.batch_bytes(keys bytea[], "values" bytea[], header_keys text[], header_values bytea[])
returns int language sql stable
return pg_column_size("values") + coalesce(pg_column_size(keys), 0)
    + coalesce(pg_column_size(header_keys), 0) + coalesce(pg_column_size(header_values), 0);
