-- commit_batch_offsets(batch_id, group, partitions, starts, ends) commits the ends of what a batch read as a group's
-- offsets, or raises (MX120) why not: a start that is not −1 must be the group's offset, if it has one there. Locks the
-- group (exclusive): of two batches that read the same, one decides behind the other. Writes consumer_group, group_offset.
create function msgtx.commit_batch_offsets(
    in_batch_id bigint, in_group_name text, offset_partitions int[], start_offsets bigint[], end_offsets bigint[]
) returns boolean language plpgsql volatile as $$
declare
    named constant text[] := array_fill(in_group_name, array[cardinality(offset_partitions)]);
    answer record;
    moved record;
    ignored boolean := msgtx.lock_group(in_group_name);
begin
    select c.* into answer from msgtx.check_offsets(
        named, offset_partitions, end_offsets, '{}', '{}', '{}', '{}', '{}') c;
    if answer.error is not null then
        raise exception using errcode = 'MX120', message = answer.detail, column = answer.error;
    end if;
    select o.partition_id, o.start_offset, c.committed_offset into moved
    from unnest(offset_partitions, start_offsets) o(partition_id, start_offset)
    join msgtx.committed_offsets(in_group_name, offset_partitions) c on c.partition_id = o.partition_id
    where o.start_offset >= 0 and c.committed_offset <> o.start_offset
    order by o.partition_id limit 1;
    if found then
        raise exception using errcode = 'MX120', column = 'BatchConflict', message = format(
            'group %s is at offset %s of %s, and %s begins at %s: %s',
            in_group_name, moved.committed_offset, msgtx.partition_name(moved.partition_id),
            coalesce('batch ' || in_batch_id, 'a batch'), moved.start_offset,
            case when moved.committed_offset > moved.start_offset then 'another run has committed what this one read'
                else 'the group was reset, or a failover or a restore has lost what was committed; begin a new checkpoint:'
                    ' the query reads on from the group''s offsets' end);
    end if;
    return msgtx.insert_offsets(named, offset_partitions, end_offsets, '{}', '{}', '{}', null, null, null);
end $$;
