-- take_out_members(group_id, gone) removes members, and gives their partitions to the planned owners; a partition without
-- one is free, and has no row. → the new generation. The caller holds the group's lock exclusively. Heartbeats stay for the
-- sweep. Deletes from group_member, group_assignment. Writes group_assignment, consumer_group. Flushed.
create function msgtx.take_out_members(in_group_id int, gone bigint[]) returns int language plpgsql volatile as $$
declare
    raised int := msgtx.raise_generation(in_group_id, true);
begin
    delete from msgtx.group_member m where m.member_number = any(gone);
    update msgtx.consumer_group g set emptied_at = msgtx.clock()
    where g.group_id = in_group_id
      and (select true from msgtx.group_member m where m.group_id = in_group_id limit 1) is null;
    update msgtx.group_assignment a set target = null where a.group_id = in_group_id and a.target = any(gone);
    update msgtx.group_assignment a set owner = a.target, owner_since = raised
    where a.group_id = in_group_id and a.owner = any(gone);
    delete from msgtx.group_assignment a where a.group_id = in_group_id and a.owner is null;
    return raised;
end $$;
