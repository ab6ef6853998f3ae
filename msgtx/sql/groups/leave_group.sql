-- leave_group(group, member) removes a member; → whether it was there. One of a share group proves to be itself by its
-- number (join_share_group). Its partitions go at once to their planned owners. The group stays with its generation
-- when its last member goes: commits of the old ones stay refused (P16).
-- Locks the group (exclusive). Reads group_member. Deletes and writes through take_out_members. Flushed.
-- right: consume
-- plan: look-ups
create function msgtx.leave_group(group_name text, in_member_id text, in_member_number bigint default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    group_left int;
    leaving bigint;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    group_left := (select g.group_id from msgtx.consumer_group g where g.name = group_name);
    leaving := (
        select m.member_number from msgtx.group_member m where m.group_id = group_left and m.member_id = in_member_id
          and (m.member_number = in_member_number or msgtx.acts_for_owner()
               or not exists (select from msgtx.share_group s where s.group_id = group_left)));
    return leaving is not null and msgtx.take_out_members(group_left, array[leaving]) is not null;
end $$;
