-- record_range(query_id, batch_id, group, partitions, starts, ends, run, source) notes the ranges that a source of a
-- streaming query reads in a batch, for the sink of the same query. The sink commits the ends as the group's offsets;
-- without a group ('') only to know the batch again. Read again after a restart, a batch reads the same. error and
-- detail say what cannot be exactly once:
--   BatchConflict   what is committed under this number, or noted for a group, was another range, or a later batch is
--                   committed and nothing of this one is known any more: the checkpoint fell behind
--   ConfigError     another source of this run reads the same partitions for the same group, which has one position there
-- Where nothing can be written (a standby), nothing is recorded without a group: nothing checks what reads there.
-- Reads spark_batch. Writes spark_range. Not flushed by itself: the decision is, and comes later in the WAL.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.record_range(
    in_query_id text, in_batch_id bigint, in_group_name text, partition_ids int[], start_offsets bigint[],
        end_offsets bigint[], in_run_id text default '', in_source_id text default '',
    out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ambiguous constant bigint := -1;  -- several sources without a group read it: not compared
    newest bigint;
    other record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids);
        if in_group_name <> '' then
            ignored := msgtx.require_names('group', array[in_group_name]);
        end if;
    end if;
    if in_group_name = '' and current_setting('transaction_read_only')::boolean then
        return;
    end if;
    newest := (select max(b.batch_id) from msgtx.spark_batch b where b.query_id = in_query_id);
    if newest > in_batch_id and exists (
        select from unnest(partition_ids) u(partition_id)
        where (select true from msgtx.spark_range r where r.query_id = in_query_id and r.batch_id = in_batch_id
               and r.group_name = in_group_name and r.partition_id = u.partition_id) is null) then
        error := 'BatchConflict';
        detail := format('query %s is to read batch %s, and has committed batch %s: the checkpoint fell behind; start with a'
                         ' new one', in_query_id, in_batch_id, newest)
                  || case when in_group_name <> '' then format(', from the offsets of group %s', in_group_name) else '' end;
        return;
    end if;
    insert into msgtx.spark_range (
        query_id, batch_id, group_name, partition_id, start_offset, end_offset, recorded_at, run_id, source_id)
    select in_query_id, in_batch_id, in_group_name, u.partition_id, u.start_offset, u.end_offset, msgtx.clock(), in_run_id,
           in_source_id
    from unnest(partition_ids, start_offsets, end_offsets) u(partition_id, start_offset, end_offset)
    order by u.partition_id
    on conflict on constraint spark_range_pkey do nothing;
    if in_group_name = '' then
        -- Without a group a batch that is not committed may be planned anew, and several sources may read a partition.
        -- Locked first: after the lock the rows do not change.
        perform from (select u from unnest(partition_ids) u order by u) u(id)
        cross join lateral (
            select from msgtx.spark_range o where o.query_id = in_query_id and o.batch_id = in_batch_id and o.group_name = ''
            and o.partition_id = u.id and (o.run_id, o.source_id) <> (in_run_id, in_source_id) limit 1 for update) o;
        update msgtx.spark_range r
        set start_offset = case when r.run_id = in_run_id and r.source_id <> in_source_id then ambiguous
            else u.start_offset end,
            end_offset = case when r.run_id = in_run_id and r.source_id <> in_source_id then ambiguous else u.end_offset end,
            run_id = in_run_id, source_id = in_source_id
        from unnest(partition_ids, start_offsets, end_offsets) u(partition_id, start_offset, end_offset)
        cross join lateral (
            select o.ctid as place from msgtx.spark_range o
            where o.query_id = in_query_id and o.batch_id = in_batch_id and o.group_name = ''
              and o.partition_id = u.partition_id and (o.run_id, o.source_id) <> (in_run_id, in_source_id) limit 1) o
        where r.ctid = o.place and coalesce(newest, -1) < in_batch_id and r.start_offset <> ambiguous;
    else
        select r.partition_id into other from unnest(partition_ids) u(partition_id)
        cross join lateral (
            select r.* from msgtx.spark_range r where r.query_id = in_query_id and r.batch_id = in_batch_id
            and r.group_name = in_group_name and r.partition_id = u.partition_id limit 1) r
        where in_run_id <> '' and r.run_id = in_run_id and r.source_id <> in_source_id
        order by r.partition_id limit 1;
        if found then
            error := 'ConfigError';
            detail := format(
                'two sources of one query read %s for group %s, which has one position there: load the topic once'
                ' and use the DataFrame twice, or leave the group out at source and sink and name the application with'
                ' txnAppId', msgtx.partition_name(other.partition_id), in_group_name);
            return;
        end if;
    end if;
    select r.partition_id, r.start_offset, r.end_offset, u.start_offset as asked_start, u.end_offset as asked_end into other
    from unnest(partition_ids, start_offsets, end_offsets) u(partition_id, start_offset, end_offset)
    cross join lateral (
        select r.* from msgtx.spark_range r where r.query_id = in_query_id and r.batch_id = in_batch_id
        and r.group_name = in_group_name and r.partition_id = u.partition_id limit 1) r
    where (r.start_offset, r.end_offset) <> (u.start_offset, u.end_offset) and r.start_offset <> ambiguous
    order by r.partition_id limit 1;
    if found then
        error := 'BatchConflict';
        detail := format(
            'batch %s of query %s read offsets %s to %s of %s, and shall read %s to %s now: the checkpoint fell'
            ' behind; start with a new one', in_batch_id, in_query_id, other.start_offset, other.end_offset,
                         msgtx.partition_name(other.partition_id), other.asked_start, other.asked_end)
                  || case when in_group_name <> '' then format(', from the offsets of group %s', in_group_name) else '' end;
    end if;
end $$;
