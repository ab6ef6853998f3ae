-- end_sessions() ends the other sessions of this database that may use msgtx, as far as the role may: those of msgtx's
-- processes, and all of the schema's owner, of roles with a right and of their members, whatever name they give themselves
-- (a URL may have an application_name). → how many, and how many it could not end. They connect again, and then learn of a
-- changed incarnation. Reads pg_stat_activity, role_right; writes nothing.
-- right: owner
create function msgtx.end_sessions(out ended int, out not_ended int) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    one int;
    owner constant oid := (select n.nspowner from pg_namespace n where n.nspname = 'msgtx');
begin
    ended := 0;
    not_ended := 0;
    for one in
        select a.pid from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid()
          and coalesce(a.backend_type, 'client backend') = 'client backend'  -- null: hidden from this role
          and (a.application_name like 'msgtx %'
               or a.usesysid = owner
               or not (select r.rolsuper from pg_roles r where r.oid = a.usesysid) and (
                   pg_has_role(a.usesysid, owner, 'MEMBER') or exists (
                       select from msgtx.role_right r join pg_roles g on g.rolname = r.role_name
                       where pg_has_role(a.usesysid, g.oid, 'MEMBER'))))
    loop
        begin
            ended := ended + pg_terminate_backend(one)::int;
        exception when insufficient_privilege then
            not_ended := not_ended + 1;  -- of another role: it learns of it when it is fenced, or connects again by itself
        end;
    end loop;
end $$;
