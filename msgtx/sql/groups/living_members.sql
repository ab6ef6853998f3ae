-- living_members(group_id) → the members of a group whose session is not over, and how they are named in an error. Behind
-- the group's lock; those whose session is over are in no one's way.
-- Reads group_member, group_heartbeat.
create function msgtx.living_members(in_group_id int)
returns table (member_number bigint, described text) language sql volatile
as $$
    select m.member_number,
           format('%s%s', m.member_id, case when m.client_host is not null then ' on ' || m.client_host else '' end)
    from msgtx.group_member m
    where m.group_id = in_group_id and not exists (
        select from msgtx.overdue_members(in_group_id, msgtx.clock()) o where o.member_number = m.member_number)
    order by m.member_number
$$;
