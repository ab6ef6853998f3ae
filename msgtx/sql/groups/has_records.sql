-- has_records(partitions, group) → whether a consumer group or share group may have records to read in one of these
-- partitions: what others have or take counts, too. A group that does not exist yet begins at the log start. Reads
-- consumer_group, share_group, group_offset and, through log_ends and partitions_to_acquire, what they do.
create function msgtx.has_records(partition_ids int[], group_name text) returns boolean language plpgsql stable as $$
declare
    found_id constant int := (select c.group_id from msgtx.consumer_group c where c.name = group_name);
    g msgtx.share_group;
begin
    select s.* into g from msgtx.share_group s where s.group_id = found_id;
    if found then
        return exists (select from msgtx.partitions_to_acquire(g, partition_ids, msgtx.clock(), 1));
    end if;
    return exists (
        select from msgtx.log_ends(partition_ids, 'read_committed') e
        left join lateral msgtx.newest_offset_of(found_id, e.partition_id) o on true
        where e.last_stable_offset > greatest(o.committed_offset, e.log_start_offset));
end $$;
