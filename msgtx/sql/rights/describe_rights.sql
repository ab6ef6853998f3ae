-- describe_rights() → the rights of roles, in order. exists: false for a role that was dropped, even if another one of its
-- name was made; the next change or upgrade forgets its rights. Reads role_right.
-- right: observe of all topics
create function msgtx.describe_rights()
returns table (role text, can text, resource text, name text, "exists" boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select r.role_name::text, r.can, r.resource, r.topic_pattern, exists (
        select from pg_roles g where g.rolname = r.role_name and has_schema_privilege(g.oid, 'msgtx', 'USAGE'))
    from msgtx.role_right r order by r.role_name, r.can, r.resource <> 'topic', r.resource, r.topic_pattern;
end $$;
