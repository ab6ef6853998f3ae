-- leave_group(group, member) removes a member; → whether it was there. What it owned belongs at once to whom it shall belong. The
-- group stays with its generation when its last member goes: commits of the old ones stay refused (P16).
-- Locks the group (exclusive). Reads group_member. Deletes and writes through take_out_members. Flushed.
create function msgtx.leave_group(group_name text, in_member_id text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    leaving record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    select g.group_id, m.member_number into leaving
    from msgtx.consumer_group g join msgtx.group_member m on m.group_id = g.group_id
    where g.name = group_name and m.member_id = in_member_id;
    if not found then
        return false;
    end if;
    return msgtx.take_out_members(leaving.group_id, array[leaving.member_number]) is not null;
end $$;
