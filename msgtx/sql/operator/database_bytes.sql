-- database_bytes() → the size of this database on its disk, with what is not msgtx's. PostgreSQL keeps no history of it.
-- right: observe of all topics
create function msgtx.database_bytes() returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return pg_database_size(current_database());
end $$;
