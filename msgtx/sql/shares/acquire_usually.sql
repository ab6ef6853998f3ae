-- acquire_usually(group, partition, members, calls, mosts, …) gives members of a share group the next new records of a
-- partition, one member after the other, in the usual case, by look-ups of single rows (decision 0118).
--   usual         living members hold all records in flight, none is to be delivered again or is parked, and the next rows
--                 of the log are committed and not compacted
--   first_offsets, last_offsets   what each accepts first: all records of one call; -1: none; null: nobody accepts any
--   mosts         how many records each asks for; 0: it only accepts
--   inline_bytes  how many bytes of records it may return: beyond it, the columns of a row are null
--   no row        it is not usual, and nothing was done
--   a row for each piece of a row of the log that asker, a place in members, has acquired: each offset is a record, and
--   byte_size its part of the row's; and a last one with asker 0
-- The caller holds the share partition's lock, and has looked at rights, at the members, and at what share_call knows. Reads
-- partition, record_batch, group_member, group_heartbeat, transaction_decision. Writes share_state.
-- long: its steps share the state of the partition, and calls cost more than they save (decision 0118)
create function msgtx.acquire_usually(
    g msgtx.share_group, in_partition_id int, member_numbers bigint[], call_numbers bigint[], mosts int[], max_bytes bigint,
    first_offsets bigint[], last_offsets bigint[], inline_bytes bigint)
returns table (
    asker int, byte_size bigint, first_offset bigint, last_offset bigint, max_timestamp bigint, keys bytea[],
        "values" bytea[], timestamps bigint[], header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile as $$
#variable_conflict use_column
declare
    members constant int := cardinality(member_numbers);
    wanted constant int := (select sum(m) from unnest(mosts) m);
    state record;
    flight record;
    f record;
    moment timestamptz;
    end_offset bigint;
    next_offset bigint;
    next_token text;
    room bigint;
    need bigint := 0;
    count bigint;
    begins bigint;
    headers_from bigint;
    headers bigint;
    is_part boolean;
    is_inline boolean;
    taken msgtx.share_span[] := '{}';
    some_values bytea[];
    values_from bigint;
begin
    if g.ordering <> 'none' or g.isolation <> 'read_committed' then
        return;
    end if;
    select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys, (
               select p.log_start_offset from msgtx.partition p where p.partition_id = in_partition_id limit 1) as log_start
    into state from msgtx.share_state s
    where s.group_id = g.group_id and s.partition_id = in_partition_id order by s.version desc limit 1;
    moment := msgtx.clock();
    if (state.next_offset > state.log_start and state.next_token is not null and state.waiting_keys = '{}'
        and (state.next_due <= moment) is not true) is not true
    then
        return;
    end if;
    select array_agg(u.span) filter (where u.is_accepted is not true) as spans,
           count(*) filter (where u.is_accepted) as accepted, coalesce(
               sum((u.span).last_offset - (u.span).first_offset + 1) filter (where u.is_accepted is not true), 0) as records,
           array_agg((u.span).member_number) filter (where u.at is null) as others,
           bool_and((u.span).status = 'acquired' and msgtx.is_running((u.span).locked_until, g.longest_lock_ms, moment)
                    and (u.span).first_offset >= state.log_start
                    and (u.span).call_number is distinct from call_numbers[u.at]) as is_usual
    into flight
    from (
        select s.span, s.at, (s.span).first_offset = first_offsets[s.at]
            and (s.span).last_offset = last_offsets[s.at] as is_accepted
        from (select a as span, array_position(member_numbers, a.member_number) as at
            from unnest(state.spans) a offset 0) s) u;
    if flight.is_usual is false or flight.accepted <> cardinality(array_remove(first_offsets, -1)) then
        return;
    end if;
    room := least(wanted, g.max_record_locks - flight.records);
    if exists (
        select from unnest(flight.others) o
        left join lateral msgtx.session_of(o, moment) s on true where s.is_over is not false)
    then
        return;
    end if;

    -- How far it goes: not past what the general rules have to look at.
    end_offset := state.next_offset;
    for f in
        select b.base_offset, b.last_offset, b.byte_size,
               msgtx.batch_identity(
                   b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at) as identity,
               b.last_offset < end_offset or b.offset_deltas is null
                   and (b.header_keys @> '{msgtx.deliver-at}') is not true and (
                   b.base_offset < end_offset or b.transaction_number is null or (
                       select d.outcome from msgtx.transaction_decision d
                       where d.producer_id = b.producer_id and d.producer_epoch = b.producer_epoch
                         and d.transaction_number = b.transaction_number limit 1) = 'COMMIT') as is_usual
        from msgtx.record_batch b
        where b.partition_id = in_partition_id and b.base_offset >= (
            select e.base_offset from msgtx.record_batch e
            where e.partition_id = in_partition_id and e.base_offset < end_offset order by e.base_offset desc limit 1)
        order by b.base_offset
    loop
        if next_token is not null then
            exit when room <= 0 or max_bytes <= 0;
            if f.is_usual is not true or f.base_offset <> end_offset then
                return;
            end if;
        elsif (f.is_usual and state.next_token = 'stable ' || f.identity) is not true then
            return;  -- the row in front of what is new, or with the first of it
        end if;
        next_token := 'stable ' || f.identity;
        if f.last_offset >= end_offset and room > 0 then
            count := least(room, f.last_offset - end_offset + 1);
            end_offset := end_offset + count;
            room := room - count;
            max_bytes := max_bytes - f.byte_size;
        end if;
    end loop;
    if next_token is null then
        return;
    end if;

    next_offset := state.next_offset;
    asker := 0;
    if end_offset > next_offset then
        for f in
            select b.base_offset, b.last_offset, b.byte_size, b.offset_deltas, b.max_timestamp, b.keys, b."values",
                b.timestamps, b.header_counts, b.header_keys, b.header_values
            from msgtx.record_batch b
            where b.partition_id = in_partition_id and b.base_offset < end_offset and b.base_offset >= (
                select e.base_offset from msgtx.record_batch e
                where e.partition_id = in_partition_id and e.base_offset <= next_offset order by e.base_offset desc limit 1)
            order by b.base_offset
        loop
            if f.offset_deltas is not null then
                raise exception using errcode = '55P03', message = format(
                    'partition %s was compacted meanwhile: call again', in_partition_id);
            end if;
            max_timestamp := f.max_timestamp;
            values_from := next_offset - 1;
            is_inline := inline_bytes >= f.byte_size * (least(end_offset, f.last_offset + 1) - next_offset)
                / (f.last_offset - f.base_offset + 1);
            if members > 1 and is_inline then  -- the row's values are unpacked once, for all
                some_values := f."values"[next_offset - f.base_offset + 1:end_offset - f.base_offset];
            end if;
            while next_offset < least(end_offset, f.last_offset + 1) loop
                while need = 0 loop
                    asker := asker + 1;
                    need := mosts[asker];
                end loop;
                count := least(need, least(end_offset, f.last_offset + 1) - next_offset);
                first_offset := next_offset;
                last_offset := next_offset + count - 1;
                begins := first_offset - f.base_offset;
                byte_size := f.byte_size * count / (f.last_offset - f.base_offset + 1);
                is_part := count <= f.last_offset - f.base_offset;
                if is_inline then
                    "values" := case when members > 1 then some_values[first_offset - values_from:last_offset - values_from]
                                     when is_part then f."values"[begins + 1:begins + count] else f."values" end;
                    keys := case when is_part then f.keys[begins + 1:begins + count] else f.keys end;
                    timestamps := case when is_part then f.timestamps[begins + 1:begins + count] else f.timestamps end;
                    header_counts := f.header_counts;
                    header_keys := f.header_keys;
                    header_values := f.header_values;
                    if is_part and header_counts is not null then
                        header_counts := f.header_counts[begins + 1:begins + count];
                        headers_from := coalesce((select sum(c) from unnest(f.header_counts[:begins]) c), 0);
                        headers := (select sum(c) from unnest(header_counts) c);
                        header_keys := f.header_keys[headers_from + 1:headers_from + headers];
                        header_values := f.header_values[headers_from + 1:headers_from + headers];
                    end if;
                    -- Other records of the row may be the smaller ones.
                    inline_bytes := inline_bytes - msgtx.batch_bytes(keys, "values", header_keys, header_values);
                    is_inline := inline_bytes >= 0;
                end if;
                if not is_inline then
                    keys := null;
                    "values" := null;
                    timestamps := null;
                    header_counts := null;
                    header_keys := null;
                    header_values := null;
                end if;
                return next;
                if taken[cardinality(taken)].member_number = member_numbers[asker] then
                    taken[cardinality(taken)].last_offset := last_offset;
                else
                    taken := taken || row(
                        first_offset, last_offset, 'acquired', 1, member_numbers[asker], call_numbers[asker],
                        moment + g.record_lock_duration_ms * interval '1 ms',
                        null, null, null, null, null)::msgtx.share_span;
                end if;
                next_offset := next_offset + count;
                need := need - count;
            end loop;
        end loop;
    end if;
    asker := 0;
    return next;
    if next_offset > state.next_offset or flight.accepted > 0 then
        insert into msgtx.share_state (
            group_id, partition_id, version, next_offset, next_token, spans, next_due, waiting_keys)
        values (g.group_id, in_partition_id, state.version + 1, next_offset, next_token,
                coalesce(flight.spans, '{}') || taken, state.next_due, state.waiting_keys);
    end if;
end $$;
