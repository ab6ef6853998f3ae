-- commit_batch(app_id, batch_id, receipts, …) commits what the tasks of a batch have written, all of it or nothing, with the
-- caller's own statements of this SQL transaction; → true. false: the batch was committed before, and what this run has
-- written is aborted: roll your own statements back. Repeated after its answer was lost, it answers false.
--   receipts     the last one of each task; nulls are left out. Other attempts of the batch are aborted
--   group_name   commit the ends of cut as offsets of this group; start: where it must stand (BatchConflict), null: anywhere
-- Raises what decide_batch answers. Locks, writes and flushes as decide_batch does.
-- right: produce
create function msgtx.commit_batch(
    app_id text, batch_id bigint, receipts text[], group_name text default null, cut text default null,
    start text default null)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    anywhere constant bigint := -1;  -- a start that is not compared
    tasks record;
    partition_ids int[];
    starts bigint[];
    ends bigint[];
    answer record;
begin
    if group_name is not null and cut is null then
        raise exception using errcode = 'MX042', message = 'a group needs the cut up to which the batch has read',
            detail = jsonb_build_object('name', 'cut');
    end if;
    select coalesce(array_agg(distinct p.producer_id), '{}') as attempts,
           coalesce(array_agg(p.producer_id) filter (where p.partition_id is not null), '{}') as owners,
           coalesce(array_agg(p.partition_id) filter (where p.partition_id is not null), '{}') as partitions,
           coalesce(array_agg(p.last_sequence) filter (where p.partition_id is not null), '{}') as sequences
    into tasks
    from unnest(receipts) r cross join lateral msgtx.parts_of_receipt(r) p;
    if group_name is not null then
        select array_agg(e.partition_id), array_agg(coalesce(s.end_offset, anywhere)), array_agg(e.end_offset)
        into partition_ids, starts, ends
        from msgtx.cut_ends(commit_batch.cut, 'cut') e
        left join msgtx.cut_ends(coalesce(commit_batch.start, split_part(commit_batch.cut, ' ', 1)), 'start') s
            on s.partition_id = e.partition_id;  -- without a start: a cut of nothing
    end if;
    answer := msgtx.decide_batch(
        app_id, '', batch_id, tasks.attempts, tasks.owners, tasks.partitions, tasks.sequences, group_name,
        partition_ids, starts, ends);
    if answer.error is not null then
        raise exception using errcode = 'MX000', column = answer.error, message = answer.detail;
    end if;
    return not answer.skipped;
end $$;
