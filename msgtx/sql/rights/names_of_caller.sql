-- names_of_caller(kind, name) → how the caller stands to a consumer group or a transactional id, by the rows of role_right
-- of this kind: 'group' or 'transactional_id'. Rights of roles whose rights it inherits count, as in patterns_of_caller.
--   everything   it may use every name: the schema's owner, members of that role, superusers, administrators of every topic
--   granted      it was granted this one, by name or prefix
--   may_use      one of the two; or it was granted none of this kind, and no role was granted this one
-- Plain SQL without settings: it becomes part of its caller. Reads role_right.
create function msgtx.names_of_caller(kind text, name text)
returns table (everything boolean, granted boolean, may_use boolean) language sql stable as $$
    select r.everything, r.granted, r.everything or r.granted or not (r.limited or r.taken)
    from (
        select pg_has_role(c.oid, n.nspowner, 'USAGE') or coalesce(bool_or(
                   w.mine and w.resource = 'topic' and w.can = 'admin' and w.topic_pattern = '*'), false) as everything,
               coalesce(bool_or(w.mine and w.resource = kind), false) as limited,
               coalesce(bool_or(w.fits and w.resource = kind), false) as taken,
               coalesce(bool_or(w.mine and w.fits and w.resource = kind), false) as granted
        from (select to_regrole(quote_ident(msgtx.caller()))::oid as oid offset 0) c
        join pg_namespace n on n.nspname = 'msgtx'
        left join lateral (
            select g.resource, g.can, g.topic_pattern,
                   case when right(g.topic_pattern, 1) = '*' then starts_with(name, left(g.topic_pattern, -1))
                       else g.topic_pattern = name end as fits,
                   pg_has_role(c.oid, role.oid, 'USAGE') and has_schema_privilege(role.oid, n.oid, 'USAGE') as mine
            from msgtx.role_right g
            cross join lateral (select to_regrole(quote_ident(g.role_name))::oid as oid offset 0) role
            where g.resource = kind or g.can = 'admin') w on true
        group by c.oid, n.nspowner) r
$$;
