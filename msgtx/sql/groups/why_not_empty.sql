-- why_not_empty(name, group_id) → a sentence if a group has members whose session is not over, else null. Behind the group's
-- lock. Reads group_member, group_heartbeat.
create function msgtx.why_not_empty(group_name text, in_group_id int) returns text language sql volatile as $$
    select format('group %s has %s (%s)', group_name,
                  case count(*) when 1 then 'a member' else count(*) || ' members' end,
                  (array_agg(m.described order by m.member_number))[1] || case when count(*) > 1 then ', …' else '' end)
    from msgtx.living_members(in_group_id) m
    having count(*) > 0
$$;
