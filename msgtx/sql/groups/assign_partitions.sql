-- assign_partitions(group, generation, topics_version, partitions, targets) plans the owner of each partition; → whether
-- the group was still at the generation that this was computed of: if not, nothing changes, and the caller looks again. A
-- partition without an owner belongs to its target at once, any other stays with its owner until that releases it, leaves
-- or dies. A partition without a name here, or with a target that is no member, is to have no owner. Partitions that do not
-- exist have no owner. Locks the group (exclusive). Reads group_member, partition. Writes consumer_group, group_assignment.
-- Flushed.
-- right: consume
-- plan: look-ups
create function msgtx.assign_partitions(
    group_name text, expected_generation int, in_topics_version bigint, partition_ids int[], targets bigint[]
) returns boolean language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s'
as $$
declare
    assigned int;
    raised int;
    named int[];
    heirs bigint[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    select g.group_id into assigned from msgtx.consumer_group g
    where g.name = group_name and g.generation = expected_generation;
    if not found then
        return false;
    end if;
    raised := msgtx.raise_generation(assigned, false);
    update msgtx.consumer_group g set stale = false, topics_version = in_topics_version where g.group_id = assigned;

    select array_agg(w.partition_id), array_agg(w.target) into named, heirs
    from unnest(partition_ids, targets) w(partition_id, target)
    where (select m.group_id from msgtx.group_member m where m.member_number = w.target) = assigned
      and (select true from msgtx.partition p where p.partition_id = w.partition_id);
    insert into msgtx.group_assignment as a (group_id, partition_id, owner, owner_since, target)
    select assigned, w.partition_id, w.target, raised, w.target from unnest(named, heirs) w(partition_id, target)
    on conflict (group_id, partition_id) do update set target = excluded.target
        where a.target is distinct from excluded.target;
    delete from msgtx.group_assignment a
    where a.group_id = assigned and (select true from msgtx.partition p where p.partition_id = a.partition_id) is null;
    update msgtx.group_assignment a set target = null
    where a.group_id = assigned and a.target is not null
      and a.partition_id not in (select unnest(named));
    return true;
end $$;
