-- reset_offsets(group, partitions, offsets) commits offsets for a group without members, which need not exist; error and
-- detail say why not: ConfigError (it is a share group), GroupNotEmpty, and those of check_offsets. Members whose session is
-- over are removed. A transaction that is open may still commit offsets of its own over these: the newest counts (P17).
-- Locks the group (exclusive). Deletes and writes through take_out_members. Writes consumer_group, group_offset. Flushed.
-- right: admin of all topics
-- plan: look-ups
create function msgtx.reset_offsets(
    group_name text, partition_ids int[], offsets bigint[], out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    found_group int;
    gone bigint[];
    named text[] := array_fill(group_name, array[cardinality(partition_ids)]);
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    select g.group_id into found_group from msgtx.consumer_group g where g.name = group_name;
    if exists (select from msgtx.share_group s where s.group_id = found_group) then
        error := 'ConfigError: share group';
        detail := format('%s is a share group, whose offsets are reset as one (client.admin.shares)', group_name);
        return;
    end if;
    detail := msgtx.why_not_empty(group_name, found_group);
    if detail is not null then
        error := 'GroupNotEmpty';
        return;
    end if;
    gone := array(select m.member_number from msgtx.group_member m where m.group_id = found_group);
    if gone <> '{}' then
        ignored := msgtx.take_out_members(found_group, gone) is not null;
    end if;
    select c.error, c.detail into error, detail
    from msgtx.check_offsets(named, partition_ids, offsets, '{}', '{}', '{}', '{}', '{}') c;
    if error is null then
        ignored := msgtx.insert_offsets(named, partition_ids, offsets, '{}', '{}', '{}', null, null, null);
        ignored := msgtx.flush_at_commit();
    end if;
end $$;
