-- group_to_take_for(group) → the id of a consumer group in whose name this SQL transaction may take records to its end; it
-- is made if need be. Null: the group's lock is not free, because the group is made or changed now. Raises GroupNotEmpty
-- (MX068) while it has members; those whose session is over are removed. ConfigError: it is a share group.
-- Tries the group's lock, and never waits: in share mode, or exclusively if it changes the group. Reads group_member,
-- share_group. Writes consumer_group, and what take_out_members does.
-- plan: look-ups
create function msgtx.group_to_take_for(group_name text) returns int language plpgsql volatile as $$
declare
    found_id int;
    gone bigint[];
    refused text;
begin
    select g.group_id into found_id from msgtx.consumer_group g
    where g.name = group_name
        and (select true from msgtx.group_member m where m.group_id = g.group_id limit 1) is null;
    if found then
        if not msgtx.try_lock_group_shared(group_name) then
            return null;
        end if;
    else
        refused := (select msgtx.why_not_empty(g.name, g.group_id) from msgtx.consumer_group g where g.name = group_name);
        if refused is null then
            if not msgtx.try_lock_group(group_name) then
                return null;
            end if;
            insert into msgtx.consumer_group (name) values (group_name) on conflict do nothing;
        end if;
    end if;
    -- Behind the lock, and so of this moment.
    select g.group_id into found_id from msgtx.consumer_group g where g.name = group_name;
    if exists (select from msgtx.share_group s where s.group_id = found_id) then
        raise exception using errcode = 'MX000', column = 'ConfigError', message = format(
            '%s is a share group: read it with msgtx.receive, or choose another name for the consumer group', group_name),
            detail = jsonb_build_object('group', group_name, 'reason', 'share group');
    end if;
    gone := array(select m.member_number from msgtx.group_member m where m.group_id = found_id);
    if gone = '{}' then
        return found_id;
    end if;
    refused := msgtx.why_not_empty(group_name, found_id);
    if refused is not null then
        raise exception using errcode = 'MX068', message = format(
            '%s, which read for it: stop them, or take for another group', refused),
            detail = jsonb_build_object('group', group_name);
    end if;
    perform msgtx.take_out_members(found_id, gone);
    return found_id;
end $$;
