-- patterns_of_caller(cans) → the patterns of the topics on which the caller has one of these rights; null: on all of them. So
-- for the schema's owner, members of that role and superusers. Rights of roles of which the caller is a member count, as
-- PostgreSQL's own do (pg_has_role, USAGE). A role that has lost its USAGE of the schema is not the one that was granted
-- something: it was dropped and made anew. Reads role_right.
create function msgtx.patterns_of_caller(cans text[]) returns text[] language plpgsql stable as $$
declare
    patterns text[];
begin
    select case when not pg_has_role(c.oid, n.nspowner, 'USAGE') then array(
               select distinct r.topic_pattern
               from msgtx.role_right r join pg_roles g on g.rolname = r.role_name
               where r.can = any(cans) and pg_has_role(c.oid, g.oid, 'USAGE') and has_schema_privilege(g.oid, n.oid, 'USAGE'))
           end
    into patterns
    from pg_roles c cross join pg_namespace n
    where c.rolname = msgtx.caller() and n.nspname = 'msgtx';
    if not found then
        return '{}';  -- the role was dropped during its session
    end if;
    return case when array_position(patterns, '*') is null then patterns end;
end $$;
