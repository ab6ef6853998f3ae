-- check_offsets(groups, partitions, …) locks the groups (share, ascending by key) and says whether these offsets may be
-- committed; error null if so. A member commits for its own partitions, from the generation on in which it got them (I11).
-- Without a member, offsets are committed while the group has none. Of several refusals the first one is answered:
--   UnknownTopicOrPartition   the partition does not exist (any more)
--   FencedInstance            the group has no such member, and another one has its instance id
--   UnknownMember             the group has no such member; or it has members, and the commit names none
--   IllegalGeneration         newer than the group's; or older than the one in which the member got the partition
--   NotAssigned               the partition is not the member's
--   OffsetMetadataTooLarge, LogTruncated, InvalidRequest, ConfigError (it is a share group: before a missing member)
--   instance_ids     of static members; may be shorter than the rest
--   read_identities  of the last row read before each offset; null: not known. A crash may have given its offsets to others
-- Reads partition, record_batch, topic, consumer_group, share_group, group_member, group_assignment.
create function msgtx.check_offsets(
    group_names text[], partition_ids int[], offsets bigint[], metadata text[], member_ids text[], generations int[],
    instance_ids text[], read_identities text[], out error text, out detail text
) language plpgsql volatile as $$
declare
    name text;
    bad record;
    place text;
    ignored boolean;
begin
    if cardinality(group_names) = 0 then
        return;
    end if;
    for name in select g from unnest(group_names) g group by g order by hashtext(g) loop
        ignored := msgtx.lock_group_shared(name);
    end loop;
    for bad in
        select o.group_name, o.partition_id, o.committed_offset, octet_length(o.note) as note_bytes, o.member_id,
            o.generation, o.instance_id, g.generation as group_generation, holder.member_id as holder, a.owner_since,
               was_read.base_offset as read_offset, refused.rank
        from unnest(group_names, partition_ids, offsets, metadata, member_ids, generations, instance_ids, read_identities)
            with ordinality o(group_name, partition_id, committed_offset, note, member_id, generation, instance_id,
                              read_identity, ordinal)
        left join lateral (select p.* from msgtx.partition p where p.partition_id = o.partition_id limit 1) p on true
        left join lateral (
            select c.group_id, c.generation from msgtx.consumer_group c where c.name = o.group_name limit 1) g on true
        left join lateral (
            select m.member_number from msgtx.group_member m
            where m.group_id = g.group_id and m.member_id = o.member_id limit 1) m on true
        left join lateral (
            select s.member_id from msgtx.group_member s
            where s.group_id = g.group_id and s.group_instance_id = o.instance_id and m.member_number is null limit 1
            ) holder on true
        left join lateral (
            select a.owner, a.owner_since from msgtx.group_assignment a
            where a.group_id = g.group_id and a.partition_id = o.partition_id and o.member_id is not null limit 1) a on true
        cross join lateral (
            select r.base_offset, r.base_offset >= p.log_start_offset and (
                select msgtx.batch_identity(b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at)
                from msgtx.record_batch b
                where b.partition_id = o.partition_id and b.base_offset = r.base_offset) is distinct from o.read_identity
            from (select split_part(o.read_identity, ':', 1)::bigint) r(base_offset)) was_read(base_offset, truncated)
        cross join lateral (
            select case
                when p.partition_id is null then 1
                when o.member_id is null and (select true from msgtx.share_group s where s.group_id = g.group_id) then 9
                when holder.member_id <> o.member_id then 2
                when case when o.member_id is null
                    then (select true from msgtx.group_member m where m.group_id = g.group_id limit 1)
                    else m.member_number is null end then 3
                when o.member_id is not null and (o.generation > g.generation
                    or (a.owner = m.member_number and a.owner_since > coalesce(o.generation, -1))) then 4
                when o.member_id is not null and a.owner is distinct from m.member_number then 5
                when octet_length(o.note) > 4096 then 6
                when was_read.truncated then 7
                when o.committed_offset < 0 or o.group_name = '' or o.group_name is null then 8 end
            offset 0) refused(rank)  -- evaluated in one place: each one is set up for every call
        where refused.rank is not null
        order by refused.rank, o.ordinal limit 1
    loop
        place := (
            select format('%s-%s', t.name, p.partition_index)
            from msgtx.partition p join msgtx.topic t using (topic_id) where p.partition_id = bad.partition_id);
        error := (array[
            'UnknownTopicOrPartition', 'FencedInstance', 'UnknownMember', 'IllegalGeneration', 'NotAssigned',
            'OffsetMetadataTooLarge', 'LogTruncated', 'InvalidRequest', 'ConfigError: share group'])[bad.rank];
        detail := case error
            when 'UnknownTopicOrPartition' then
                format('group %s: partition %s does not exist (any more)', bad.group_name, bad.partition_id)
            when 'FencedInstance' then
                format('group %s: group_instance_id %s belongs to member %s now; the commit for %s is of member %s',
                       bad.group_name, bad.instance_id, bad.holder, place, bad.member_id)
            when 'UnknownMember' then case
                when bad.member_id is null then format(
                    'group %s has members, which alone commit its offsets; the commit for %s names none',
                    bad.group_name, place)
                else format(
                    'group %s has no member %s (any more); its commit is for %s', bad.group_name, bad.member_id, place) end
            when 'IllegalGeneration' then case
                when bad.generation > bad.group_generation then format(
                    'group %s is at generation %s; the commit of member %s for %s is of generation %s',
                    bad.group_name, bad.group_generation, bad.member_id, place, bad.generation)
                else format('group %s: member %s owns %s since generation %s; the commit is of generation %s',
                            bad.group_name, bad.member_id, place, bad.owner_since, coalesce(bad.generation, -1)) end
            when 'NotAssigned' then
                format('group %s: %s is not assigned to member %s at generation %s; the commit is of generation %s',
                       bad.group_name, place, bad.member_id, bad.group_generation, bad.generation)
            when 'OffsetMetadataTooLarge' then
                format('group %s: metadata of %s bytes; at most 4096 are stored', bad.group_name, bad.note_bytes)
            when 'ConfigError: share group' then
                format('%s is a share group: choose another name for the consumer group, or delete that group',
                    bad.group_name)
            when 'LogTruncated' then
                format(
                    '%s: what was read at offset %s is no longer in the log: a crash of the server took it back; rewind, or'
                    ' seek to where you want to go on', place, bad.read_offset)
            else format('group %s: offset %s cannot be committed', bad.group_name, bad.committed_offset) end;
    end loop;
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids);
        ignored := msgtx.require_names('group', group_names);
    end if;
end $$;
