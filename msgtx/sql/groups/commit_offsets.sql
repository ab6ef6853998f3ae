-- commit_offsets(groups, partitions, offsets, …) is a plain commit, outside any transaction. Flushed. error null if done.
-- Locks groups (share). Writes consumer_group, group_offset.
-- right: consume
-- plan: look-ups
create function msgtx.commit_offsets(
    group_names text[], partition_ids int[], offsets bigint[], metadata text[], member_ids text[], generations int[],
    read_identities text[] default '{}', instance_ids text[] default '{}', out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    select c.error, c.detail into error, detail from msgtx.check_offsets(
        group_names, partition_ids, offsets, metadata, member_ids, generations, instance_ids, read_identities) c;
    if error is null then
        ignored := msgtx.insert_offsets(
            group_names, partition_ids, offsets, metadata, member_ids, generations, null, null, null);
        ignored := msgtx.flush_at_commit();
    end if;
end $$;
