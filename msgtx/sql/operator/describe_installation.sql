-- describe_installation() → incarnation, schema version and hash of the functions; what a client compares when it connects.
-- right: any
create function msgtx.describe_installation(out incarnation uuid, out schema_version int, out functions_hash text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    select i.incarnation, i.schema_version, i.functions_hash into incarnation, schema_version, functions_hash
    from msgtx.installation i;
end $$;
