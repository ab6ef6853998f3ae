-- fetch_batches(partitions, positions, tokens, isolation) → the log's rows from each position, one statement on one
-- snapshot for all partitions. At least one row per partition that exists; its columns from base_offset on are null when
-- there is nothing to read.
--   tokens           'stable ' or 'seen ' and the identity of the row before the position, as the reader got it; null after
--                    a seek. Only a stable one whose identity still matches lets the search for the first undecided
--                    transaction start at the position (P22, P45), and only behind the log start, in front of which there may be
--                    an open one (delete_records)
--   truncated        the row before the position is not the one that the token names, or the log ends before the position
--   blocked_…        the undecided transaction that holds the last stable offset back, and whether it is overdue
--   visible          false: a row of an aborted transaction, without its arrays; the reader's position passes it
--   max_bytes        of visible rows and partition, more only to return one row; max_rows: of rows and partition
-- Whoever may not consume a topic gets 42501; its ends alone (max_rows 0) are for all who have any right on it.
-- Below the floor, absence of an ABORT marker means committed; above it, only a COMMIT decision does.
-- STABLE: bound and rows must agree. Reads only. Rows of a partition come in the order of their offsets. No sort and no bitmap
-- scan: a plan that was made while the log was empty must not read a whole partition later.
create function msgtx.fetch_batches(
    partition_ids int[], positions bigint[], tokens text[], isolation text,
    max_bytes bigint default 8388608, max_rows int default 1000)
returns table (
    partition_id int, log_start_offset bigint, last_stable_offset bigint, log_end_offset bigint,
    previous_identity text, truncated boolean,
    blocked_producer_id bigint, blocked_epoch int, blocked_number bigint, blocked_overdue boolean,
    base_offset bigint, last_offset bigint, identity text, visible boolean, max_timestamp bigint,
    keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[], offset_deltas int[])
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights(
            case when max_rows = 0 then '{produce,consume,admin}'::text[] else '{consume}' end, partition_ids);
    end if;
    return query
    select asked.partition_id, p.log_start_offset, bound.last_stable, bound.log_end,
           previous.identity, bound.truncated,
           blocking.producer_id, blocking.producer_epoch, blocking.transaction_number,
           (select msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend) from msgtx.transaction t
            where t.producer_id = blocking.producer_id and t.producer_epoch = blocking.producer_epoch
              and t.transaction_number = blocking.transaction_number),
           r.base_offset, r.last_offset,
           msgtx.batch_identity(r.base_offset, r.producer_id, r.producer_epoch, r.base_sequence, r.appended_at),
           r.visible, r.max_timestamp,
           case when r.visible then r.keys end, case when r.visible then r."values" end,
           case when r.visible then r.timestamps end, case when r.visible then r.header_counts end,
           case when r.visible then r.header_keys end, case when r.visible then r.header_values end,
           r.offset_deltas
    from unnest(partition_ids, positions, tokens) asked(partition_id, position, token)
    join msgtx.partition p on p.partition_id = asked.partition_id
    left join lateral (
        select b.base_offset, b.last_offset,
               msgtx.batch_identity(b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at) as identity
        from msgtx.record_batch b
        where b.partition_id = asked.partition_id and b.base_offset < asked.position
        order by b.base_offset desc limit 1) previous on true
    left join lateral (
        select b.last_offset + 1 as next_offset from msgtx.record_batch b
        where b.partition_id = asked.partition_id order by b.base_offset desc limit 1) tail on true
    left join lateral (
        select f.stable_floor from msgtx.partition_floor f
        where f.partition_id = asked.partition_id order by f.stable_floor desc limit 1) floor on true
    left join lateral (
        select tp.first_offset, tp.producer_id, tp.producer_epoch, tp.transaction_number
        from msgtx.transaction_partition tp
        where tp.partition_id = asked.partition_id
          and tp.first_offset >= greatest(
              floor.stable_floor, case when asked.position > p.log_start_offset
                                       and asked.token = 'stable ' || previous.identity then asked.position end, 0)
          and (select true from msgtx.transaction_decision d
               where d.producer_id = tp.producer_id and d.producer_epoch = tp.producer_epoch
                 and d.transaction_number = tp.transaction_number) is null
        order by tp.first_offset limit 1) blocking on true
    cross join lateral (
        select greatest(tail.next_offset, p.log_start_offset) as log_end,
               greatest(least(blocking.first_offset, greatest(tail.next_offset, p.log_start_offset)),
                        p.log_start_offset) as last_stable,
               asked.position > greatest(tail.next_offset, p.log_start_offset)
               or (asked.position > p.log_start_offset and previous.identity is not null and asked.token is not null
                   and split_part(asked.token, ' ', 2) <> previous.identity) as truncated) bound
    left join lateral (
        select w.* from (
            select v.*, coalesce(sum(case when v.visible then v.byte_size end)
                                 over (order by v.base_offset rows between unbounded preceding and 1 preceding), 0) as before
            from (
                select b.*, isolation <> 'read_committed' or b.transaction_number is null
                       or case when b.base_offset < floor.stable_floor
                           then (select true from msgtx.transaction_marker m
                                 where m.partition_id = b.partition_id and m.producer_id = b.producer_id
                                   and m.producer_epoch = b.producer_epoch
                                   and m.transaction_number = b.transaction_number and m.outcome = 'ABORT') is null
                           else (select true from msgtx.transaction_decision d
                                 where d.producer_id = b.producer_id and d.producer_epoch = b.producer_epoch
                                   and d.transaction_number = b.transaction_number and d.outcome = 'COMMIT') is not null
                           end as visible
                from msgtx.record_batch b
                where b.partition_id = asked.partition_id and not bound.truncated
                  and asked.position >= p.log_start_offset
                  and b.base_offset >= case when previous.last_offset >= asked.position
                                            then previous.base_offset else asked.position end
                  and b.base_offset < case when isolation = 'read_committed'
                                            then least(blocking.first_offset, bound.log_end) else bound.log_end end
                order by b.base_offset limit max_rows) v) w
        where w.before < max_bytes) r on true;
end $$;
