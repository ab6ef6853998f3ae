-- decide_batch(app_id, query_id, batch_id, accepted attempts, …) ends a batch: the accepted attempts commit, up to 250
-- others that are registered abort, the group's offsets and the fence row are inserted, in one SQL transaction, or nothing
-- of it. Further attempts are left for abort_batch, or for their timeouts, which nothing prolongs after the fence row.
--   accepted      producer ids; tail_owners, tail_partitions, tail_sequences: the last sequence that each sent there
--   offset_partitions, start_offsets, end_offsets   what the batch read, for in_group_name; null: as its source recorded it,
--                 but for deleted partitions. A start that is not −1 must be the group's offset, if it has one there
--   in_run_id     the run of a query, in which each of its batches is written once for each application
--   whole_query   the query writes nothing else: every group of its sources is in_group_name
--   skipped       the batch was committed before; what this run wrote is aborted
--   aborted       how many attempts were; 250: there may be more; error, detail: why nothing is decided
-- Locks the application (exclusive), producers (exclusive, ascending), the group (exclusive). Reads spark_range, partition.
-- Writes transaction_decision, consumer_group, group_offset, spark_batch, spark_floor. Flushed.
-- right: produce
-- plan: look-ups
create function msgtx.decide_batch(
    in_app_id text, in_query_id text, in_batch_id bigint, accepted bigint[],
    tail_owners bigint[], tail_partitions int[], tail_sequences bigint[],
    in_group_name text default null, offset_partitions int[] default null, start_offsets bigint[] default null,
    end_offsets bigint[] default null, in_run_id text default '', whole_query boolean default false,
    out skipped boolean, out aborted int, out error text, out detail text
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    aborted_at_once constant int := 250;  -- each takes a place of the lock table
    attempt bigint;
    answer record;
    noted text;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    -- An application that has batches of other queries only has lost its checkpoint: its batches are counted anew, and only
    -- what was read, compared with the group's offsets, shows whether one is new. Batches that a program counted itself
    -- (query '') become a query's own when the query continues with the next number. A batch of a sink that neither wrote
    -- nor read anything leaves no row: nothing in it could be doubled or lost. A stream whose batch lies before the newest
    -- committed one has an old checkpoint: Spark repeats no other batch than the last one.
    aborted := 0;
    ignored := msgtx.lock_spark_app(in_app_id);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('transactional_id', array[in_app_id]);
    ignored := msgtx.flush_at_commit();
    skipped := msgtx.is_batch_committed(in_app_id, in_query_id, in_batch_id);
    if skipped then
        select w.error, w.detail into error, detail
        from msgtx.why_batch_conflicts(in_app_id, in_query_id, in_batch_id, in_run_id, accepted) w;
        if error is null then
            aborted := msgtx.abort_batch(in_app_id, in_query_id, in_batch_id, aborted_at_once);
            ignored := msgtx.flush_log();  -- the first call's COMMIT may have waited in vain, see there
        end if;
        return;
    end if;
    if whole_query then
        noted := (
            select min(r.group_name) from msgtx.spark_range r
            where r.query_id = in_query_id and r.batch_id = in_batch_id
              and r.group_name not in ('', coalesce(in_group_name, '')));
        if noted is not null then
            error := 'ConfigError: group';
            detail := format(
                'the source of the query reads for group %s, and its sink has %s: give both the same option group',
                noted, coalesce('group ' || in_group_name, 'no group'));
            return;
        end if;
    end if;
    if in_group_name is not null and offset_partitions is null and accepted <> '{}' and not exists (
        select from msgtx.spark_range r where r.query_id = in_query_id and r.group_name = in_group_name) then
        error := 'ConfigError: source';
        detail := format(
            'the sink has group %s, and no source of the query has read for it in this database: give the source the same'
            ' option group and the same database, or leave the group out at the sink; if a failover or a restore has lost'
            ' what the source had noted, begin a new checkpoint', in_group_name);
        return;
    end if;
    if in_group_name is not null and offset_partitions is null then
        select array_agg(r.partition_id order by r.partition_id), array_agg(r.start_offset order by r.partition_id),
               array_agg(r.end_offset order by r.partition_id)
        into offset_partitions, start_offsets, end_offsets
        from msgtx.spark_range r
        where r.query_id = in_query_id and r.batch_id = in_batch_id and r.group_name = in_group_name
          and (select true from msgtx.partition p where p.partition_id = r.partition_id);
    end if;
    if in_query_id <> ''
       and exists (select from msgtx.spark_batch b where b.app_id = in_app_id and b.query_id <> '' or
                   b.app_id = in_app_id and msgtx.last_batch(in_app_id, '') + 1 <> in_batch_id)
       and not exists (select from msgtx.spark_batch b where b.app_id = in_app_id and b.query_id = in_query_id)
       and (offset_partitions is null or accepted <> '{}' and not exists (
            select from msgtx.committed_offsets(in_group_name, offset_partitions) c where c.committed_offset is not null))
                then
        if accepted <> '{}' then
            error := 'CheckpointLost';
            detail := format(
                'application %s has committed batches of another query, and none of query %s: its checkpoint was lost,'
                ' or a failover has lost its batches; restore it, or give source and sink the option group, or take another'
                ' txnAppId',
                             in_app_id, in_query_id);
        end if;
        return;
    end if;

    ignored := msgtx.require_lock_places(cardinality(accepted), 'tasks of a batch');
    begin
        for attempt in
            select a from (
                select unnest(accepted)
                union (select ua.producer_id from msgtx.undecided_attempts(in_app_id, in_query_id, in_batch_id) ua
                       where ua.producer_id not in (select unnest(accepted)) limit aborted_at_once)
            ) every(a) order by (a << 32) >> 32
        loop
            ignored := msgtx.lock_producer(attempt);
        end loop;
        foreach attempt in array accepted loop
            select d.* into answer from msgtx.decide(
                attempt, 0, 0, 'COMMIT',
                array(select t.p from unnest(tail_owners, tail_partitions) t(o, p) where t.o = attempt),
                array(select t.s from unnest(tail_owners, tail_sequences) t(o, s) where t.o = attempt)) d;
            if answer.error is not null then
                raise exception using errcode = 'MX120', message = answer.detail, column = answer.error;
            end if;
        end loop;
        if in_group_name is not null and offset_partitions <> '{}' then
            ignored := msgtx.commit_batch_offsets(
                in_batch_id, in_group_name, offset_partitions, start_offsets, end_offsets);
        end if;
        if not whole_query or tail_partitions <> '{}' or offset_partitions <> '{}' then
            insert into msgtx.spark_batch (app_id, query_id, batch_id, decided_at, run_id)
            values (in_app_id, in_query_id, in_batch_id, msgtx.clock(), in_run_id);
        end if;
        aborted := msgtx.abort_batch(in_app_id, in_query_id, in_batch_id, aborted_at_once);
    exception when sqlstate 'MX120' then
        get stacked diagnostics error = column_name, detail = message_text;
    end;
end $$;
