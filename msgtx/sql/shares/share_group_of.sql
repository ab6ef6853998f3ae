-- share_group_of(group, member) → the settings of a share group, for its member. Raises GroupNotFound (MX069) and
-- UnknownMember (MX025). It locks nothing: a reset of the group locks its share partitions, as the caller does. It does
-- not wait for a deletion in between. Reads consumer_group, share_group, group_member.
create function msgtx.share_group_of(group_name text, in_member_number bigint) returns msgtx.share_group
language plpgsql volatile as $$
declare
    found_group msgtx.share_group;
begin
    select s.* into found_group from msgtx.consumer_group g
    cross join lateral (select s.* from msgtx.share_group s where s.group_id = g.group_id limit 1) s
    where g.name = group_name;
    if not found then
        raise exception using errcode = 'MX069', message = format('there is no share group %s', group_name),
            detail = jsonb_build_object('group', group_name);
    end if;
    if not exists (select from msgtx.group_member m
                   where m.member_number = in_member_number and m.group_id = found_group.group_id) then
        raise exception using errcode = 'MX025', message = format(
            'share group %s has no member with number %s (any more)', group_name, in_member_number),
            detail = jsonb_build_object('group', group_name);
    end if;
    return found_group;
end $$;
