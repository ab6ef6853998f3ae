-- release_partitions(group, member, partitions) ends a member's ownership: each partition goes to its planned owner;
-- without one it is free, and has no row. → the group's generation, a new one if anything was released; null if there is no
-- such group. Repeated, it releases nothing more. Locks the group (exclusive). Writes consumer_group, group_assignment.
-- Flushed.
-- right: consume
-- null: value
-- plan: look-ups
create function msgtx.release_partitions(group_name text, in_member_number bigint, partition_ids int[])
returns int language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    released record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    select g.group_id, g.generation into released from msgtx.consumer_group g where g.name = group_name;
    if not exists (
        select from msgtx.group_assignment a where a.group_id = released.group_id and a.owner = in_member_number
        and a.partition_id = any(partition_ids)) then
        return released.generation;
    end if;
    released.generation := msgtx.raise_generation(released.group_id, false);
    update msgtx.group_assignment a set owner = a.target, owner_since = released.generation
    where a.group_id = released.group_id and a.owner = in_member_number and a.partition_id = any(partition_ids);
    delete from msgtx.group_assignment a where a.group_id = released.group_id and a.owner is null;
    return released.generation;
end $$;
