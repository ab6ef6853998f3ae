-- require_own_snapshot(name, role) raises 42501 if this role has saved a snapshot, and the caller does not act for it
-- (acts_for_role).
create function msgtx.require_own_snapshot(in_name text, role_name name) returns boolean language plpgsql stable as $$
begin
    if not msgtx.acts_for_role(role_name) then
        raise exception using errcode = '42501', message = format(
            'snapshot %s is not of role %s: it is replaced and deleted by role %s, which saved it, or one that inherits its '
            'rights',
            in_name, msgtx.caller(), role_name),
            detail = jsonb_build_object('role', msgtx.caller(), 'name', in_name, 'reason', 'owner');
    end if;
    return true;
end $$;
