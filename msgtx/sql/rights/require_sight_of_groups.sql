-- require_sight_of_groups(names) raises 42501 if the caller may neither use one of these groups nor observe it: every topic,
-- or one where the group is. Called for callers that do not act for the owner. Reads role_right and, through the views,
-- the tables of groups.
create function msgtx.require_sight_of_groups(names text[]) returns boolean language plpgsql stable as $$
declare
    hidden text;
begin
    select u.name into hidden from unnest(names) u(name)
    where not msgtx.may_use('group', u.name) and msgtx.patterns_of_caller('{observe}') is not null
      and not exists (select from msgtx.consumer_groups v where v.name = u.name)
      and not exists (select from msgtx.share_groups v where v.name = u.name) limit 1;
    if found then
        raise exception using errcode = '42501', message = format(
            'role %s lacks the right to use group %s: the owner of the schema gives it with '
            '`msgtx db grant --role %s --can consume --group %s`; to look at groups, `--can observe` is enough',
            msgtx.caller(), hidden, quote_ident(msgtx.caller()), hidden),
            detail = jsonb_build_object('role', msgtx.caller(), 'group', hidden);
    end if;
    return true;
end $$;
