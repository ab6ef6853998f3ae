-- may_use(kind, name) → whether the caller may use a consumer group ('group') or a transactional id ('transactional_id'):
-- see names_of_caller. Name null: whether it may use every name; views ask this once, before they ask for a name. Reads
-- role_right.
-- right: consume, observe
create function msgtx.may_use(kind text, name text) returns boolean language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if msgtx.acts_for_owner() or not exists (select from msgtx.role_right r where r.resource = kind) then
        return true;
    end if;
    return (select case when may_use.name is null then n.everything else n.may_use end
            from msgtx.names_of_caller(kind, may_use.name) n);
end $$;
