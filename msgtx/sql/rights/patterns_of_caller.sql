-- patterns_of_caller(cans) → patterns for LIKE of the topics on which the caller has one of these rights; null: on all of
-- them. So for the schema's owner, members of that role and superusers. Rights of roles of which the caller is a member
-- count, as PostgreSQL's own do (pg_has_role, USAGE). A role without its USAGE of the schema is not the granted one: that
-- was dropped, and this one made anew. A role that is gone, also the caller, is null here and has none. The right to
-- administer includes the one to observe. Reads role_right.
create function msgtx.patterns_of_caller(cans text[]) returns text[] language plpgsql stable as $$
declare
    patterns text[];
begin
    select case when pg_has_role(c.oid, n.nspowner, 'USAGE') then null else array(
        select replace(replace(r.topic_pattern, '_', E'\\_'), '*', '%')  -- E: whatever the session's way with backslashes
        from msgtx.role_right r
        where r.resource = 'topic' and (r.can = any(cans) or r.can = 'admin' and 'observe' = any(cans))
            and pg_has_role(c.oid, to_regrole(quote_ident(r.role_name))::oid, 'USAGE')
          and has_schema_privilege(to_regrole(quote_ident(r.role_name))::oid, n.oid, 'USAGE')) end
    into patterns
    from (select to_regrole(quote_ident(msgtx.caller()))::oid as oid offset 0) c
    join pg_namespace n on n.nspname = 'msgtx';
    return case when array_position(patterns, '%') is null then patterns end;
end $$;
