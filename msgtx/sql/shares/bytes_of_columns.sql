-- bytes_of_columns(keys, values, header_keys, header_values) → how large these columns of an answer are.
create function msgtx.bytes_of_columns(keys bytea[], "values" bytea[], header_keys text[], header_values bytea[])
returns int language sql stable as $$
    select pg_column_size("values") + coalesce(pg_column_size(keys), 0) + coalesce(pg_column_size(header_keys), 0)
           + coalesce(pg_column_size(header_values), 0)
$$;
