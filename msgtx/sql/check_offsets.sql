-- check_offsets(groups, partitions, …) locks the groups (share, ascending by key) and says whether these offsets may be
-- committed; error null if so. While membership does not exist no group has members: a commit that names one is stale.
--   read_identities  the identity of the last row that was read before each offset, null if that is not known. A crash that
--                    took that row back gives its offsets to others: a position behind it would skip them (LogTruncated)
-- Reads partition, record_batch, topic.
create function msgtx.check_offsets(
    group_names text[], partition_ids int[], offsets bigint[], metadata text[], member_ids text[],
    read_identities text[], out error text, out detail text
) language plpgsql volatile as $$
declare
    name text;
    bad record;
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
               p.partition_id is null as missing, was_read.base_offset as read_offset, was_read.truncated
        from unnest(group_names, partition_ids, offsets, metadata, member_ids, read_identities)
            o(group_name, partition_id, committed_offset, note, member_id, read_identity)
        left join msgtx.partition p on p.partition_id = o.partition_id
        cross join lateral (
            select r.base_offset, r.base_offset >= p.log_start_offset and (
                select msgtx.batch_identity(b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at)
                from msgtx.record_batch b
                where b.partition_id = o.partition_id and b.base_offset = r.base_offset) is distinct from o.read_identity
            from (select split_part(o.read_identity, ':', 1)::bigint) r(base_offset)) was_read(base_offset, truncated)
        where o.member_id is not null or p.partition_id is null or o.committed_offset < 0
           or octet_length(o.note) > 4096 or o.group_name = '' or o.group_name is null or was_read.truncated
        limit 1
    loop
        if bad.missing then
            error := 'UnknownTopicOrPartition';
            detail := format('group %s: partition %s does not exist (any more)', bad.group_name, bad.partition_id);
        elsif bad.member_id is not null then
            error := 'UnknownMember';
            detail := format('group %s has no member %s', bad.group_name, bad.member_id);
        elsif bad.note_bytes > 4096 then
            error := 'OffsetMetadataTooLarge';
            detail := format('group %s: metadata of %s bytes; at most 4096 are stored', bad.group_name, bad.note_bytes);
        elsif bad.truncated then
            error := 'LogTruncated';
            detail := (
                select format('%s-%s: what was read at offset %s is no longer in the log: a crash of the server took it back;'
                              ' rewind, or seek to where you want to go on', t.name, p.partition_index, bad.read_offset)
                from msgtx.partition p join msgtx.topic t using (topic_id) where p.partition_id = bad.partition_id);
        else
            error := 'InvalidRequest';
            detail := format('group %s: offset %s cannot be committed', bad.group_name, bad.committed_offset);
        end if;
    end loop;
end $$;
