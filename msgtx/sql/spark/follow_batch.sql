-- follow_batch(group, partitions, starts, ends, source) commits the ends of a stream's completed batch as the group's
-- offsets, unless its sink has committed them with its outputs. source: of this run, as its tasks have noted the batch. Left
-- out are deleted partitions, and those where the group has no offset and no task has read: nothing tells then whether a
-- checkpoint was lost. error and detail say why not: those of check_offsets, or BatchConflict: the group is elsewhere,
-- or at the ends because another query has moved it. The fence row says which query's batch has moved the group.
-- Locks the group (exclusive). Reads partition, spark_range. Writes consumer_group, group_offset, spark_batch. Flushed.
-- right: consume
-- plan: look-ups
create function msgtx.follow_batch(
    in_group_name text, partition_ids int[], start_offsets bigint[], end_offsets bigint[], in_source_id text,
    out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    moved int[];
    starts bigint[];
    ends bigint[];
    behind boolean;
    own record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids);
        ignored := msgtx.require_names('group', array[in_group_name]);
    end if;
    ignored := msgtx.lock_group(in_group_name);
    select array_agg(u.partition_id order by u.partition_id), array_agg(u.start_offset order by u.partition_id),
           array_agg(u.end_offset order by u.partition_id), bool_or(c.committed_offset is distinct from u.end_offset)
    into moved, starts, ends, behind
    from unnest(partition_ids, start_offsets, end_offsets) u(partition_id, start_offset, end_offset)
    left join msgtx.committed_offsets(in_group_name, partition_ids) c on c.partition_id = u.partition_id
    where (select true from msgtx.partition p where p.partition_id = u.partition_id)
      and (c.committed_offset is not null or (
          select true from msgtx.spark_range r
          where r.group_name = in_group_name and r.partition_id = u.partition_id and r.end_offset = u.end_offset
            and r.start_offset = u.start_offset
          limit 1));
    select r.* into own
    from unnest(moved, ends) u(partition_id, end_offset)
    cross join lateral (
        select r.query_id, r.batch_id, r.partition_id, r.end_offset from msgtx.spark_range r
        where r.group_name = in_group_name and r.partition_id = u.partition_id and r.end_offset = u.end_offset
          and r.source_id = in_source_id
        limit 1) r
    limit 1;
    if behind then
        ignored := msgtx.commit_batch_offsets(own.batch_id, in_group_name, moved, starts, ends);
        insert into msgtx.spark_batch (app_id, query_id, batch_id, decided_at, run_id)
        select 'offsets of ' || in_group_name, own.query_id, own.batch_id, msgtx.clock(), '' where own.query_id is not null
        on conflict on constraint spark_batch_pkey do nothing;
        ignored := msgtx.flush_at_commit();
    elsif own.query_id is not null and not exists (
        select from msgtx.spark_batch b where b.query_id = own.query_id and b.batch_id >= own.batch_id) then
        error := 'BatchConflict';
        detail := format(
            'another query has moved group %s to offset %s of %s, up to which batch %s of query %s has read, too: give each'
            ' query a group of its own', in_group_name, own.end_offset, msgtx.partition_name(own.partition_id),
            own.batch_id, own.query_id);
    end if;
exception when sqlstate 'MX120' then
    get stacked diagnostics error = column_name, detail = message_text;
end $$;
