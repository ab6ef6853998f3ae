-- append_staged(staged_by) writes what a SQL transaction has staged, and deletes the rows: the consumer offsets of its
-- session, then records, those of the session before those of msgtx.publish, each partition's in their order; then its
-- answers for records of share groups. All of its partitions are locked first, in one ascending round, however they were
-- staged. It raises refusals: those of offsets and answers with SQLSTATE MX000 and the error's name as column. A batch of
-- published records has up to 400 KiB or 10,000 records (a record weighs 41 bytes more than it has); a call has one batch of
-- each partition at most, and up to 32 MiB.
-- Locks groups (share), partitions, share partitions (exclusive, ascending). Writes record_batch, group_offset, share_state,
-- staged_record, staged_commit.
create function msgtx.append_staged(in_staged_by xid8) returns boolean language plpgsql volatile
set plan_cache_mode = force_generic_plan set jit = off set enable_sort = off as $$
declare
    calls cursor for
        with weighed as (
            select s.partition_id, s.staged_number, s.key, s.value, s.headers, s."timestamp", s.record_bytes,
                   ((sum(s.record_bytes + 41) over (partition by s.partition_id order by s.staged_number
                     rows unbounded preceding))::bigint - s.record_bytes - 41) / 409600 as round
            from msgtx.staged_record s where s.staged_by = in_staged_by
        ), grouped as (
            select w.partition_id, w.round, sum(w.record_bytes)::bigint as bytes, max(w."timestamp") as max_timestamp,
                   case when count(w.key) > 0 then array_agg(w.key order by w.staged_number) end as keys,
                   array_agg(w.value order by w.staged_number) as "values",
                   case when min(w."timestamp") < max(w."timestamp")
                       then array_agg(w."timestamp" order by w.staged_number) end as timestamps,
                   case when count(w.headers) > 0 then array_agg(w.headers order by w.staged_number) end as headers
            from weighed w group by w.partition_id, w.round
        ), batches as (
            select g.round, (sum(g.bytes) over (partition by g.round order by g.partition_id))::bigint / 33554432 as part,
                   row(g.partition_id, null, null, null, null, g.max_timestamp, g.keys, g."values", g.timestamps,
                       h.counts, h.keys, h."values")::msgtx.batch as batch
            from grouped g
            cross join lateral msgtx.header_columns(g.headers) h
        )
        select array_agg(b.batch order by (b.batch).partition_id) as batches
        from batches b group by b.round, b.part order by b.round, b.part;
    locked_id int;
    staged record;
    refused record;
    published msgtx.staged_record;
    header_counts int[];
    header_keys text[];
    header_values bytea[];
    ignored boolean;
begin
    -- Nothing has to be put in order for one call's batches or answers (without a rejection), or one published record.
    select count(case when c.group_names <> '{}' or c.share_answers @> '{reject}' then true end) as commits,
           count(case when c.batches <> '{}' then true end) as batched,
           count(case when c.share_groups <> '{}' then true end) as answered,
           (select count(*) from (select from msgtx.staged_record s where s.staged_by = in_staged_by limit 2) r) as records
    into staged from msgtx.staged_commit c where c.staged_by = in_staged_by;
    if staged.commits = 0 and staged.batched + staged.answered + staged.records = 1 then
        if staged.answered = 1 then
            ignored := msgtx.answer_or_raise(
                c.share_groups, c.share_members, c.share_partitions, c.share_firsts, c.share_lasts, c.share_answers,
                c.share_reasons, c.share_delays, held_calls => c.share_calls)
            from msgtx.staged_commit c where c.staged_by = in_staged_by and c.share_groups <> '{}';
        elsif staged.batched = 1 then
            ignored := msgtx.append_or_raise(c.batches)
            from msgtx.staged_commit c where c.staged_by = in_staged_by and c.batches <> '{}';
        else
            delete from msgtx.staged_record s where s.staged_by = in_staged_by returning s.* into published;
            if published.headers is not null then
                select h.counts, h.keys, h."values" into header_counts, header_keys, header_values
                from msgtx.header_columns(array[published.headers]) h;
            end if;
            ignored := msgtx.append_or_raise(array[row(
                published.partition_id, null, null, null, null, published."timestamp",
                case when published.key is not null then array[published.key] end, array[published.value], null,
                header_counts, header_keys, header_values)::msgtx.batch]);
        end if;
        delete from msgtx.staged_commit c where c.staged_by = in_staged_by;
        return true;
    end if;
    for staged in
        select c.group_names, c.offset_partitions, c.offsets, c.metadata, c.member_ids, c.generations, c.read_identities,
               c.instance_ids
        from msgtx.staged_commit c where c.staged_by = in_staged_by and c.group_names <> '{}' order by c.staged_number
    loop
        refused := msgtx.commit_offsets(staged.group_names, staged.offset_partitions, staged.offsets, staged.metadata,
                                        staged.member_ids, staged.generations, staged.read_identities, staged.instance_ids);
        if refused.error is not null then
            raise exception using errcode = 'MX000', message = refused.detail, column = refused.error;
        end if;
    end loop;
    ignored := msgtx.require_lock_places((
        select count(distinct u.partition_id)::int
        from (select s.partition_id from msgtx.staged_record s where s.staged_by = in_staged_by
              union all
              select b.partition_id from msgtx.staged_commit c cross join lateral unnest(c.batches) b
              where c.staged_by = in_staged_by) u), 'partitions');
    for locked_id in
        select s.partition_id from msgtx.staged_record s where s.staged_by = in_staged_by
        union
        select b.partition_id from msgtx.staged_commit c cross join lateral unnest(c.batches) b
            where c.staged_by = in_staged_by
        union
        select d from msgtx.staged_commit c
        cross join lateral unnest(msgtx.dead_letter_partitions(c.share_groups, c.share_partitions, c.share_answers)) d
        where c.staged_by = in_staged_by
        order by partition_id
    loop
        ignored := msgtx.lock_partition(locked_id);
    end loop;
    for staged in
        select c.batches from msgtx.staged_commit c where c.staged_by = in_staged_by and c.batches <> '{}'
        order by c.staged_number loop
        ignored := msgtx.append_or_raise(staged.batches);
    end loop;
    for found_call in calls loop
        ignored := msgtx.append_or_raise(found_call.batches);
    end loop;
    select array_agg(u.share_group) as groups, array_agg(u.member) as members, array_agg(u.partition) as partitions,
           array_agg(u.first) as firsts, array_agg(u.last) as lasts, array_agg(u.answer) as answers,
           array_agg(u.reason) as reasons, array_agg(u.delay) as delays, array_agg(u.held_call) as held_calls
    into staged
    from msgtx.staged_commit c
    cross join lateral unnest(
        c.share_groups, c.share_members, c.share_partitions, c.share_firsts, c.share_lasts, c.share_answers, c.share_reasons,
        c.share_delays, c.share_calls) u(share_group, member, partition, first, last, answer, reason, delay, held_call)
    where c.staged_by = in_staged_by;
    if staged.groups <> '{}' then
        ignored := msgtx.answer_or_raise(staged.groups, staged.members, staged.partitions, staged.firsts, staged.lasts,
                                         staged.answers, staged.reasons, staged.delays,
                                         held_calls => staged.held_calls);
    end if;
    delete from msgtx.staged_record s where s.staged_by = in_staged_by;
    delete from msgtx.staged_commit c where c.staged_by = in_staged_by;
    return true;
end $$;
