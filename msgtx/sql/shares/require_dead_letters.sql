-- require_dead_letters(groups) raises 42501 if one of these share groups may not write dead letters, nor the caller for it
-- (may_write_dead_letters).
-- Reads consumer_group, share_group, topic, role_right.
create function msgtx.require_dead_letters(group_names text[]) returns boolean language plpgsql stable as $$
declare
    refused record;
begin
    select a.group_name, msgtx.dead_letter_topic_of(a.group_name) as letters into refused
    from (select distinct u as group_name from unnest(group_names) u) a
    where not coalesce((
              select s.writes_dead_letters from msgtx.share_group s
              where s.group_id = (select c.group_id from msgtx.consumer_group c where c.name = a.group_name)), false)
      and not msgtx.may_write_dead_letters(msgtx.dead_letter_topic_of(a.group_name))
    limit 1;
    if found then
        raise exception using errcode = '42501', message = format(
            'role %s lacks the right to produce on topic %s, to which the dead letters of share group %s go (or to create'
            ' it): who administers every topic allows it with `msgtx shares configure %s --dead-letter-topic %s`',
            msgtx.caller(), refused.letters, refused.group_name, refused.group_name, refused.letters),
            detail = jsonb_build_object('role', msgtx.caller(), 'right', 'produce', 'topic', refused.letters, 'group',
                refused.group_name);
    end if;
    return true;
end $$;
