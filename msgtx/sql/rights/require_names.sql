-- require_names(kind, names) raises 42501 if the caller may not use one of these consumer groups ('group') or transactional
-- ids ('transactional_id'): see names_of_caller. Called for callers that do not act for the owner. Reads role_right.
create function msgtx.require_names(kind text, names text[]) returns boolean language plpgsql stable as $$
declare
    lacking text;
begin
    if not exists (select from msgtx.role_right r where r.resource = kind) then
        return true;
    end if;
    select asked.name into lacking
    from (select u.name from unnest(names) u(name) where u.name is not null group by u.name) asked
    cross join lateral msgtx.names_of_caller(kind, asked.name) n
    where not n.may_use limit 1;
    if found then
        raise exception using errcode = '42501', message = format(
            'role %s lacks the right to use %s %s: the owner of the schema gives it with '
            '`msgtx db grant --role %s --can %s`',
            msgtx.caller(), replace(kind, '_', ' '), lacking, quote_ident(msgtx.caller()),
            case kind when 'group' then 'consume --group ' else 'produce --transactional-id ' end || lacking),
            detail = jsonb_build_object('role', msgtx.caller(), kind, lacking);
    end if;
    return true;
end $$;
