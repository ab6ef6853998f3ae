-- take_out_members(group_id, gone) removes members, and gives what they own to those that shall own it; what nobody shall own is
-- free, and has no row. → the new generation. The caller holds the group's lock exclusively. Heartbeats stay for the sweep.
-- Deletes from group_member, group_assignment. Writes group_assignment and, through raise_generation, consumer_group. Flushed.
create function msgtx.take_out_members(in_group_id int, gone bigint[]) returns int language plpgsql volatile as $$
declare
    raised int := msgtx.raise_generation(in_group_id, true);
begin
    delete from msgtx.group_member m where m.member_number = any(gone);
    update msgtx.group_assignment a set target = null where a.group_id = in_group_id and a.target = any(gone);
    update msgtx.group_assignment a set owner = a.target, owner_since = raised
    where a.group_id = in_group_id and a.owner = any(gone);
    delete from msgtx.group_assignment a where a.group_id = in_group_id and a.owner is null;
    return raised;
end $$;
