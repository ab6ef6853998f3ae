-- fetch_batches(partitions, positions, tokens, isolation) → the log's rows from each position, one statement on one
-- snapshot for all partitions. A partition that exists has at least one row; without records, its columns from base_offset
-- on are null.
--   tokens       'stable ' or 'seen ' and the identity of the row before the position; null after a seek. The search for the
--                first undecided transaction starts at the position if a stable one still matches (P22, P45)
--   truncated    the row before the position is not the one that the token names, or the log ends before the position
--   blocked_…    the undecided transaction that holds the last stable offset back, and whether it is overdue
--   visible      false: a row of an aborted transaction, without its arrays; the reader's position passes it
--   max_bytes, max_rows    of visible rows, and of rows of a partition, but one; 10,000 rows of all, and one of each
--   total_bytes  of visible rows of all partitions, in equal shares, and the first row of all; null: no limit
-- A role that may not consume a topic gets 42501; all roles with any right on it get its ends alone (max_rows 0).
-- STABLE: bound and rows must agree. Reads only. Rows of a partition come in the order of their offsets.
-- long: one statement on one snapshot
-- right: any
-- null: previous_identity, blocked_producer_id, blocked_epoch, blocked_number, blocked_overdue, base_offset
-- null: last_offset, identity, visible, max_timestamp, keys, values, timestamps, header_counts, header_keys
-- null: header_values, offset_deltas, keys[], values[], header_values[]
-- plan: look-ups, nested loops, in order
create function msgtx.fetch_batches(
    partition_ids int[], positions bigint[], tokens text[], isolation text,
    max_bytes bigint default 8388608, max_rows int default 1000, total_bytes bigint default null)
returns table (
    partition_id int, log_start_offset bigint, last_stable_offset bigint, log_end_offset bigint,
    previous_identity text, truncated boolean,
    blocked_producer_id bigint, blocked_epoch int, blocked_number bigint, blocked_overdue boolean,
    base_offset bigint, last_offset bigint, identity text, visible boolean, max_timestamp bigint,
    keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[], offset_deltas int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    rows_of_all constant int := 10000;
    start bigint;
    previous record;
    next record;
    starts bigint[];
    ends bigint[];
    identities text[];
    usual boolean := max_rows > 0 and cardinality(partition_ids) > 0;
    ignored boolean;
begin
    -- Below the floor, absence of an ABORT marker means committed; above it, only a COMMIT decision does. A stable token
    -- counts only behind the log start, in front of which there may be an open transaction (delete_records). No sort and no
    -- bitmap scan: a plan that was made while the log was empty must not read a whole partition later.
    ignored := msgtx.acts_for_owner()
        or msgtx.require_rights(
            case when max_rows = 0 then '{produce,consume,observe}'::text[] else '{consume}' end, partition_ids);

    -- The usual case, row by row (see append_and_decide): every position has a stable token, and at most three rows behind
    -- it, all committed. In front of a stable position nothing is undecided, and so nothing is below the end of the log.
    for at in 1 .. coalesce(cardinality(partition_ids), 0) loop
        exit when usual is not true;
        start := (select p.log_start_offset from msgtx.partition p where p.partition_id = partition_ids[at]);
        select b.last_offset, msgtx.batch_identity(
                   b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at) as identity into previous
        from msgtx.record_batch b
        where b.partition_id = partition_ids[at] and b.base_offset < positions[at] order by b.base_offset desc limit 1;
        select count(*) as rows, count(case when b.decided then true end) as decided, max(b.last_offset) as last_offset,
               sum(b.byte_size) as bytes into next
        from (select b.last_offset, b.byte_size, b.transaction_number is null or (
                         select d.outcome from msgtx.transaction_decision d
                         where d.producer_id = b.producer_id and d.producer_epoch = b.producer_epoch
                           and d.transaction_number = b.transaction_number limit 1) = 'COMMIT' as decided
              from msgtx.record_batch b
              where b.partition_id = partition_ids[at] and b.base_offset >= positions[at]
              order by b.base_offset limit 4) b;
        starts[at] := start;
        ends[at] := 1 + coalesce(next.last_offset, previous.last_offset);
        identities[at] := previous.identity;
        usual := tokens[at] = 'stable ' || previous.identity and positions[at] > start
            and (previous.last_offset + 1 = positions[at] or previous.last_offset < positions[at] and next.rows > 0)
            and next.rows < 4 and next.rows <= max_rows and next.rows = next.decided
            and (next.rows = 0 or next.bytes <= least(max_bytes, total_bytes / cardinality(partition_ids)));
    end loop;
    for at in 1 .. coalesce(cardinality(partition_ids), 0) loop
        exit when usual is not true;
        if ends[at] > positions[at] then
            return query
            select b.partition_id, starts[at], ends[at], ends[at], identities[at], false,
                   null::bigint, null::int, null::bigint, null::boolean,
                   b.base_offset, b.last_offset, msgtx.batch_identity(
                       b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at),
                   true, b.max_timestamp, b.keys, b."values", b.timestamps,
                   b.header_counts, b.header_keys, b.header_values, b.offset_deltas
            from msgtx.record_batch b
            where b.partition_id = partition_ids[at] and b.base_offset >= positions[at] order by b.base_offset;
        else
            partition_id := partition_ids[at];
            log_start_offset := starts[at];
            last_stable_offset := ends[at];
            log_end_offset := ends[at];
            previous_identity := identities[at];
            truncated := false;
            return next;
        end if;
    end loop;
    if usual then
        return;
    end if;

    return query
    select c.partition_id, c.log_start_offset, c.last_stable, c.log_end, c.previous_identity, c.truncated,
           c.blocking_producer_id, c.blocking_epoch, c.blocking_number,
           (select msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at)
                   or msgtx.is_deserted(t.producer_id, t.producer_epoch, t.transaction_number) from msgtx.transaction t
            where t.producer_id = c.blocking_producer_id and t.producer_epoch = c.blocking_epoch
              and t.transaction_number = c.blocking_number),
           case when c.fits then c.base_offset end, case when c.fits then c.last_offset end,
           case when c.fits then msgtx.batch_identity(
               c.base_offset, c.producer_id, c.producer_epoch, c.base_sequence, c.appended_at) end,
           case when c.fits then c.visible end, case when c.fits then c.max_timestamp end,
           case when c.fits and c.visible then c.keys end, case when c.fits and c.visible then c."values" end,
           case when c.fits and c.visible then c.timestamps end, case when c.fits and c.visible then c.header_counts end,
           case when c.fits and c.visible then c.header_keys end, case when c.fits and c.visible then c.header_values end,
           case when c.fits then c.offset_deltas end
    from (
        -- A running total over the rows as they come, partition by partition: after the first row that does not fit,
        -- none fits.
        select k.partition_id, k.log_start_offset, k.last_stable, k.log_end, k.previous_identity, k.truncated,
               k.blocking_producer_id, k.blocking_epoch, k.blocking_number,
               r.base_offset, r.last_offset, r.producer_id, r.producer_epoch, r.base_sequence, r.appended_at, r.visible,
               r.max_timestamp, r.keys, r."values", r.timestamps, r.header_counts, r.header_keys, r.header_values,
               r.offset_deltas, r.place,
               total_bytes is null or coalesce(sum(r.visible_bytes) over come, 0) in (0, r.visible_bytes)
               or sum(r.visible_bytes) over come <= total_bytes as fits
        from (
            select asked.partition_id, asked.position, p.log_start_offset, bound.last_stable, bound.log_end,
                   bound.truncated, bound.readable_end, previous.identity as previous_identity,
                   previous.base_offset as previous_base, previous.last_offset as previous_last, floor.stable_floor,
                   blocking.producer_id as blocking_producer_id, blocking.producer_epoch as blocking_epoch,
                   blocking.transaction_number as blocking_number,
                   count(case when asked.position < bound.readable_end then true end) over () as readers
            from unnest(partition_ids, positions, tokens) asked(partition_id, position, token)
            cross join lateral (select p.* from msgtx.partition p where p.partition_id = asked.partition_id limit 1) p
            left join lateral (
                select b.base_offset, b.last_offset, msgtx.batch_identity(
                           b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at) as identity
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
                       case when isolation = 'read_committed'
                           then least(blocking.first_offset, greatest(tail.next_offset, p.log_start_offset))
                           else greatest(tail.next_offset, p.log_start_offset) end as readable_end,
                       asked.position > greatest(tail.next_offset, p.log_start_offset)
                       or (asked.position > p.log_start_offset and previous.identity is not null and asked.token is not null
                           and split_part(asked.token, ' ', 2) <> previous.identity) as truncated) bound) k
        left join lateral (
            select w.* from (
                select v.*, case when v.visible then least(v.byte_size, 2147483647)::int end as visible_bytes,
                       row_number() over front as place,
                       coalesce(sum(case when v.visible then v.byte_size end) over front, 0) as before
                from (
                    select b.*, isolation <> 'read_committed' or b.transaction_number is null
                           or case when b.base_offset < k.stable_floor
                               then (select true from msgtx.transaction_marker m
                                     where m.partition_id = b.partition_id and m.producer_id = b.producer_id
                                       and m.producer_epoch = b.producer_epoch
                                       and m.transaction_number = b.transaction_number and m.outcome = 'ABORT') is null
                               else (select true from msgtx.transaction_decision d
                                     where d.producer_id = b.producer_id and d.producer_epoch = b.producer_epoch
                                       and d.transaction_number = b.transaction_number and d.outcome = 'COMMIT') is not null
                               end as visible
                    from msgtx.record_batch b
                    where b.partition_id = k.partition_id and not k.truncated
                      and k.position >= k.log_start_offset
                      and b.base_offset >= case when k.previous_last >= k.position then k.previous_base else k.position end
                      and b.base_offset < k.readable_end
                    order by b.base_offset limit least(max_rows, 1 + rows_of_all / greatest(k.readers, 1))) v
                window front as (order by v.base_offset rows between unbounded preceding and 1 preceding)) w
            where w.before < least(max_bytes, total_bytes / greatest(k.readers, 1) + 1)) r on true
        window come as (rows between unbounded preceding and current row)) c
    where c.fits or c.place = 1 or c.base_offset is null;
end $$;
