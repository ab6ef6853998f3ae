-- acts_for_role(role) → whether the caller is this role or inherits its rights, or those of the schema's owner. For a
-- missing role (or null) only the owner acts; a dropped caller acts for its own name alone.
create function msgtx.acts_for_role(role_name name) returns boolean language sql stable
return coalesce(role_name = msgtx.caller(), false)
    or coalesce(pg_has_role(to_regrole(quote_ident(msgtx.caller()))::oid,
                            (select n.nspowner from pg_namespace n where n.nspname = 'msgtx'), 'USAGE'), false)
    or coalesce(pg_has_role(to_regrole(quote_ident(msgtx.caller()))::oid, to_regrole(quote_ident(role_name))::oid, 'USAGE'),
        false);
