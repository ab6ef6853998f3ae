-- take_new(group, partition, acquired, foreign_keys, moment, …) takes records that a share group has not met, for a member:
-- at most `most`, of so many bytes, from next_offset on. Delayed records, and others that wait for their key, are parked
-- (divide_records). An overdue transaction that holds the next ones back is aborted (I12), 100 of them in a call.
--   acquired   the span of an acquisition by this member: all but offsets and delivery_count
--   is_over    it has looked at as many rows as it may: those that compaction has emptied have no bytes
-- The caller holds the share partition's lock, and writes its state in the same SQL transaction. Reads record_batch. Writes
-- share_parked through divide_records, transaction_decision through expire_transaction.
create function msgtx.take_new(
    g msgtx.share_group, in_partition_id int, acquired msgtx.share_span, foreign_keys bigint[], moment timestamptz,
    most int, bytes_left bigint, inout next_offset bigint, inout next_token text, inout next_due timestamptz,
    inout waiting_keys bigint[], inout taken msgtx.share_span[], out is_over boolean
) language plpgsql volatile as $$
#variable_conflict use_variable
declare
    rows_left int := 2000;
    rows_at_once int := 4;
    rows_found int;
    expired_left int := 100;
    f record;
    firsts bigint[];
    lasts bigint[];
    count int;
    start bigint;
begin
    acquired.delivery_count := 1;
    -- A few rows of the log are mostly enough: more are looked for if they were not.
    while most > 0 and bytes_left > 0 and rows_left > 0 loop
        rows_found := 0;
        start := next_offset;
        for f in select b.base_offset, b.last_offset, b.visible, b.identity, b.offset_deltas,
                        g.ordering = 'key' or b.header_keys @> '{msgtx.deliver-at}' as is_divided,
                        b.blocked_producer_id, b.blocked_epoch, b.blocked_number, b.blocked_overdue
                 from msgtx.fetch_batches(
                     array[in_partition_id], array[next_offset], array[next_token], g.isolation, bytes_left, rows_at_once) b
        loop
            exit when f.base_offset is null or most <= 0;
            rows_found := rows_found + 1;
            rows_left := rows_left - 1;
            next_offset := case when f.visible then greatest(f.base_offset, next_offset) else f.last_offset + 1 end;
            while most > 0 and next_offset <= f.last_offset loop
                if f.is_divided then
                    select d.first_offsets, d.last_offsets, d.next_offset, d.next_due, d.waiting_keys, (
                               select coalesce(sum(u.last - u.first + 1), 0)
                               from unnest(d.first_offsets, d.last_offsets) u(first, last))
                    into firsts, lasts, next_offset, next_due, waiting_keys, count
                    from msgtx.divide_records(
                        g.group_id, in_partition_id, g.ordering, next_offset,
                        least(f.last_offset, next_offset + 2 * most + 1000), moment, most, foreign_keys, next_due,
                        waiting_keys) d;
                else
                    firsts := array[next_offset];
                    lasts := array[least(f.last_offset, next_offset + most - 1)];
                    count := lasts[1] - next_offset + 1;
                    if f.offset_deltas is not null then  -- what compaction has removed does not count
                        select array_remove(array[min(o.at)], null), array[max(o.at)], count(*) into firsts, lasts, count
                        from (select f.base_offset + d as at from unnest(f.offset_deltas) d
                              where f.base_offset + d >= next_offset order by d limit most) o;
                    end if;
                    next_offset := case when count < most then f.last_offset else lasts[1] end + 1;
                end if;
                for at in 1 .. cardinality(firsts) loop
                    if taken[cardinality(taken)].last_offset = firsts[at] - 1
                       and taken[cardinality(taken)].delivery_count = 1 then
                        taken[cardinality(taken)].last_offset := lasts[at];
                    else
                        acquired.first_offset := firsts[at];
                        acquired.last_offset := lasts[at];
                        taken := taken || acquired;
                    end if;
                end loop;
                most := most - count;
            end loop;
            next_token := case g.isolation when 'read_committed' then 'stable ' else 'seen ' end || f.identity;
        end loop;
        if rows_found < rows_at_once then
            -- This is as far as it can be read. If an overdue transaction is why, which each row says, that is aborted
            -- (I12).
            exit when most <= 0 or expired_left = 0 or g.isolation = 'read_uncommitted' or f.blocked_overdue is not true;
            exit when not msgtx.expire_transaction(f.blocked_producer_id, f.blocked_epoch, f.blocked_number);
            expired_left := expired_left - 1;
        end if;
        rows_at_once := least(1000, 4 * rows_at_once, greatest(1, rows_left));
        bytes_left := bytes_left - coalesce((
            select sum(b.byte_size) from msgtx.record_batch b
            where b.partition_id = in_partition_id and b.base_offset >= start and b.base_offset < next_offset), 0);
    end loop;
    is_over := rows_left <= 0;
end $$;
