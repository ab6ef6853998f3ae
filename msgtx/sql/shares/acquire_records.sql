-- acquire_records(group, member, partitions, …) gives a member records of these partitions that nobody else has, for as long
-- as the group's lock lasts: first those that are to be delivered again, then new ones. A partition whose lock another
-- member holds is passed. The more often a record was delivered, the fewer come with it, at last none: who dies of it takes
-- no others along.
--   one row for each piece of a row of the log that has records: all offsets from first to last are acquired; offsets is
--   null where each of them is a record
--   one row without a partition: there was nothing, but a partition was passed
--   in_call_number  counted by the member: the same one again has the same answer
--   answered_partitions, …  what the member answers for first (apply_answers), in the same SQL transaction: nothing is
--   acquired if any of it is refused, which is a row of its own each, with an error. The number is then that of both, see
--   acknowledge_records
-- What may not be delivered again becomes a dead letter (bury_records). What is delayed, or waits for its key, is parked: in
-- share_parked. What has been acquired is one row of share_state, however many records it is. An overdue transaction that
-- holds records back is aborted (I12). Waits for the locks of share partitions that are answered for, and, if it holds no
-- other, for that of a partition that is asked for alone; tries those of the others, of partitions of dead letters and of
-- producers. Reads partition, record_batch, consumer_group, share_group, group_member, group_heartbeat, transaction,
-- transaction_decision. Writes share_call, share_state; through unpark_records, hold_back_keys, park_delayed, divide_records
-- share_parked; through expire_transaction transaction_decision, through bury_records record_batch. Flushed if it wrote dead
-- letters: who has acquired what need not outlast a crash, and what is answered for later is flushed with it. What is
-- answered for is flushed, unless the caller does it (flush_log).
create function msgtx.acquire_records(
    group_name text, in_member_number bigint, in_call_number bigint, partition_ids int[], max_records int, max_bytes bigint,
    answered_partitions int[] default '{}', first_offsets bigint[] default '{}', last_offsets bigint[] default '{}',
    answers text[] default '{}', reasons text[] default '{}', delays_ms int[] default '{}', flushes boolean default true)
returns table (
    error text, partition_id int, first_offset bigint, last_offset bigint, delivery_count int, lock_ms int, max_timestamp bigint,
    offsets bigint[], keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    expired_at_once constant int := 100;  -- who is still held back comes again
    home record;
    g msgtx.share_group;
    state record;
    spans msgtx.share_span[];
    taken msgtx.share_span[];
    dead msgtx.share_span[];
    left_over msgtx.share_span[];
    span msgtx.share_span;
    f record;
    id int;
    log_start bigint;
    next_offset bigint;
    next_token text;
    moment timestamptz;
    until timestamptz;
    next_due timestamptz;
    waiting_keys bigint[];
    foreign_keys bigint[];
    part record;
    room int := max_records;
    before int;
    most int;
    rows_at_once int;
    rows_found int;
    bytes_left bigint;
    start bigint;
    count int;
    alone boolean;
    is_repeated boolean := false;
    is_flushed boolean := false;
    answers_usually boolean := false;
    is_refused boolean := false;
    has_passed boolean := false;
    is_usual boolean;
    are_usual_rows boolean;
    is_met boolean;
    expired boolean;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids || answered_partitions)
            and msgtx.require_names('group', array[group_name]);
    end if;
    select s.group_id, s.isolation, s.ordering, s.max_record_locks, s.record_lock_duration_ms, msgtx.is_session_over(
               newest.heartbeat_at, m.session_timeout_ms, msgtx.clock()) as is_over,
           (select c.call_number from msgtx.share_call c where c.member_number = in_member_number
            order by c.call_number desc limit 1) as answered_call
    into home
    from (select c.group_id from msgtx.consumer_group c where c.name = group_name limit 1) c
    cross join lateral (select s.* from msgtx.share_group s where s.group_id = c.group_id limit 1) s
    cross join lateral (
        select m.session_timeout_ms from msgtx.group_member m
        where m.member_number = in_member_number and m.group_id = c.group_id limit 1) m
    cross join lateral (
        select h.heartbeat_at from msgtx.group_heartbeat h where h.member_number = in_member_number
        order by h.heartbeat_number desc limit 1) newest;
    if home.is_over is not false then
        g := msgtx.share_group_of(group_name, in_member_number);
        raise exception using errcode = 'MX025', message = format(
            'share group %s: the session of member %s is over', group_name, in_member_number);
    end if;
    if answers <> '{}' and in_call_number < home.answered_call then
        return;  -- it comes late, and has no caller any more
    end if;
    if answers <> '{}' and in_call_number is distinct from home.answered_call then
        -- The usual case, see below: a member accepts one range, and is to have records of the same partition.
        answers_usually := cardinality(answers) = 1 and answers[1] = 'accept' and answered_partitions[1] = partition_ids[1];
        if not answers_usually then
            for error, partition_id, first_offset, last_offset in
                select r.error, r.partition_id, r.first_offset, r.last_offset from msgtx.apply_answers(
                    array_fill(group_name, array[cardinality(answers)]), array_fill(in_member_number, array[cardinality(answers)]),
                    answered_partitions, first_offsets, last_offsets, answers, reasons, delays_ms) r
            loop
                is_refused := true;
                return next;
            end loop;
            if is_refused then
                return;
            end if;
        end if;
    end if;
    foreach id in array partition_ids loop
        exit when room <= 0;
        if answers_usually or cardinality(partition_ids) = 1 and answers = '{}' then
            ignored := msgtx.lock_share_partition(home.group_id, id);
        elsif not msgtx.try_lock_share_partition(home.group_id, id) then
            has_passed := true;
            continue;
        end if;
        select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys into state from msgtx.share_state s
        where s.group_id = home.group_id and s.partition_id = id order by s.version desc limit 1;
        log_start := (select p.log_start_offset from msgtx.partition p where p.partition_id = id);
        moment := msgtx.clock();
        until := moment + home.record_lock_duration_ms * interval '1 ms';
        is_met := false;
        if answers_usually then
            count := 0;
            foreach span in array coalesce(state.spans, '{}') loop
                count := count + 1;
                exit when span.first_offset = first_offsets[1];
            end loop;
            if log_start is not null and span.first_offset = first_offsets[1] and span.last_offset = last_offsets[1]
               and span.status = 'acquired' and span.member_number = in_member_number and span.locked_until > moment then
                state.spans := state.spans[:count - 1] || state.spans[count + 1:];
                is_met := true;
            else
                for error, partition_id, first_offset, last_offset in
                    select r.error, r.partition_id, r.first_offset, r.last_offset from msgtx.apply_answers(
                        array[group_name], array[in_member_number], answered_partitions, first_offsets, last_offsets, answers,
                        reasons, delays_ms) r
                loop
                    is_refused := true;
                    return next;
                end loop;
                if is_refused then
                    return;
                end if;
                select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys into state
                from msgtx.share_state s
                where s.group_id = home.group_id and s.partition_id = id order by s.version desc limit 1;
            end if;
            answers_usually := false;
        end if;
        continue when log_start is null;

        -- The usual case, row by row (see append_and_decide): all that is in flight is held by living members, nothing
        -- is to be delivered again or was parked, so what comes next are the rows of the log behind those that were acquired.
        is_usual := state.next_offset > log_start and state.next_token is not null and home.ordering = 'none'
            and home.isolation = 'read_committed' and not is_repeated and state.waiting_keys = '{}'
            and (state.next_due <= moment) is not true;
        most := least(room, home.max_record_locks);
        if is_usual and state.spans <> '{}' then
            select bool_and(s.status = 'acquired' and s.locked_until > moment and s.first_offset >= log_start and case
                       when s.member_number = in_member_number then s.call_number is distinct from in_call_number
                       else (select msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment)
                             from msgtx.group_member m
                             cross join lateral (
                                 select h.heartbeat_at from msgtx.group_heartbeat h where h.member_number = m.member_number
                                 order by h.heartbeat_number desc limit 1) newest
                             where m.member_number = s.member_number) is false end),
                   least(room, home.max_record_locks - sum(s.last_offset - s.first_offset + 1))
            into is_usual, most
            from unnest(state.spans) s;
        end if;
        if is_usual is not true and g.group_id is null then
            g := msgtx.share_group_of(group_name, in_member_number);
        end if;
        if is_usual then
            next_offset := state.next_offset;
            next_token := state.next_token;
            spans := state.spans;
        elsif state.version is null then
            next_offset := case g.auto_offset_reset
                when 'earliest' then log_start
                when 'latest' then msgtx.last_stable_offset(id)
                else coalesce((
                    select l.at_offset from msgtx.list_offsets(array[id], array[floor(extract(
                        epoch from moment - split_part(g.auto_offset_reset, ':', 2)::interval) * 1000)::bigint], g.isolation) l),
                    msgtx.last_stable_offset(id)) end;
            next_token := null;
            spans := '{}';
        else
            next_offset := greatest(state.next_offset, log_start);
            next_token := case when next_offset = state.next_offset then state.next_token end;
            spans := msgtx.current_spans(state.spans, log_start, moment);
            expired := false;
            for f in
                select distinct s.producer_id, s.producer_epoch, s.transaction_number from unnest(spans) s
                cross join lateral (
                    select t.opened_at, t.timeout_ms, t.database_backend from msgtx.transaction t
                    where t.producer_id = s.producer_id and t.producer_epoch = s.producer_epoch
                      and t.transaction_number = s.transaction_number limit 1) t
                where s.status = 'pending'
                  and (msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend)
                       or msgtx.is_deserted(s.producer_id, s.producer_epoch, s.transaction_number))
                limit expired_at_once
            loop
                expired := msgtx.expire_transaction(f.producer_id, f.producer_epoch, f.transaction_number) or expired;
            end loop;
            if expired then
                spans := msgtx.current_spans(spans, log_start, moment);
            end if;
        end if;
        taken := '{}';
        alone := false;
        next_due := state.next_due;
        waiting_keys := coalesce(state.waiting_keys, '{}');
        foreign_keys := '{}';
        if spans <> '{}' and is_usual is not true then
            most := least(room, g.max_record_locks - coalesce((
                select sum(s.last_offset - s.first_offset + 1)::int from unnest(spans) s where s.status <> 'available'), 0));
            -- What this call acquired when it came the first time: its answer was lost.
            taken := array(
                select s from unnest(spans) s where s.status = 'acquired' and s.member_number = in_member_number
                                                and s.call_number = in_call_number order by s.first_offset);
            is_repeated := is_repeated or taken <> '{}';
        end if;
        if not is_repeated and is_usual is not true then
            left_over := spans;
            if spans <> '{}' then
                select d.spans, d.next_due into spans, next_due
                from msgtx.park_delayed(g.group_id, id, g.ordering, moment, spans, next_due) d;
                if g.ordering = 'key' then
                    foreign_keys := array(
                        select distinct r.key_hash from unnest(spans) s
                        cross join lateral msgtx.record_places(id, s.first_offset, s.last_offset) r
                        where s.status in ('acquired', 'pending') and s.member_number <> in_member_number and r.key_hash is not null);
                end if;
            end if;
            if next_due <= moment or waiting_keys <> '{}' then
                select u.next_due, u.waiting_keys, u.spans into next_due, waiting_keys, taken
                from msgtx.unpark_records(g.group_id, id, log_start, moment, most, foreign_keys, next_due, waiting_keys) u;
                spans := array(select s from unnest(spans || taken) s order by s.first_offset);
                taken := '{}';
            end if;
            if g.ordering = 'key' and spans <> '{}' then
                select h.spans, h.waiting_keys into spans, waiting_keys
                from msgtx.hold_back_keys(g.group_id, id, foreign_keys, spans, waiting_keys) h;
            end if;
            is_met := is_met or spans is distinct from left_over;
        end if;
        if spans <> '{}' and not is_repeated and is_usual is not true then
            -- What was rejected in a transaction, or delivered as often as it may be and not acknowledged, is a dead letter.
            dead := array(
                select s from unnest(spans) s where s.status = 'rejected'
                    or s.status = 'available' and s.delivery_count >= g.delivery_count_limit);
            if dead <> '{}' then
                left_over := msgtx.bury_records(group_name, id, dead, true);
                is_flushed := true;
                is_met := is_met or left_over is distinct from dead;
                spans := array(
                    select s from unnest(spans) s where not (s.status = 'rejected'
                        or s.status = 'available' and s.delivery_count >= g.delivery_count_limit)) || left_over;
            end if;
            foreach span in array array(
                select s from unnest(spans) s where s.status = 'available' and s.delivery_count < g.delivery_count_limit) loop
                exit when most <= 0 or alone;
                if span.delivery_count >= g.delivery_count_limit - 1 then
                    if taken <> '{}' or room < max_records then
                        most := case when g.ordering = 'key' then 0 else most end;
                        continue;  -- a later poll takes it, and nothing else
                    end if;
                    alone := true;
                end if;
                count := least(most, span.last_offset - span.first_offset + 1,
                               case when alone then 1 else greatest(1, max_records >> least(30, 3 * span.delivery_count)) end);
                spans := array(
                    select row(s.first_offset + count, s.last_offset, s.status, s.delivery_count, s.member_number,
                               null, null, null, null, null, null, s.reason)::msgtx.share_span
                    from unnest(spans) s where s.first_offset = span.first_offset and s.first_offset + count <= s.last_offset
                    union all
                    select s from unnest(spans) s where s.first_offset <> span.first_offset);
                taken := taken || row(span.first_offset, span.first_offset + count - 1, 'acquired', span.delivery_count + 1,
                                      in_member_number, in_call_number, until, null, null, null, null, null)::msgtx.share_span;
                -- With ordering=key nothing is delivered past the rest of it.
                most := case when g.ordering = 'key' and count <= span.last_offset - span.first_offset then 0 else most - count end;
            end loop;
        end if;

        bytes_left := max_bytes;
        are_usual_rows := is_usual;
        if is_usual and most > 0 then
            rows_found := 0;
            for f in
                select b.base_offset, b.last_offset, b.byte_size,
                       msgtx.batch_identity(b.base_offset, b.producer_id, b.producer_epoch, b.base_sequence, b.appended_at) as identity,
                       (b.header_keys @> '{msgtx.deliver-at}') is not true and (
                           b.base_offset < next_offset or b.transaction_number is null or (
                               select d.outcome from msgtx.transaction_decision d
                               where d.producer_id = b.producer_id and d.producer_epoch = b.producer_epoch
                                 and d.transaction_number = b.transaction_number limit 1) = 'COMMIT') as is_usual
                from msgtx.record_batch b
                where b.partition_id = id and b.base_offset >= (
                    select e.base_offset from msgtx.record_batch e
                    where e.partition_id = id and e.base_offset < next_offset order by e.base_offset desc limit 1)
                order by b.base_offset
            loop
                rows_found := rows_found + 1;
                are_usual_rows := case when rows_found = 1
                    then next_token = 'stable ' || f.identity and (f.is_usual or f.last_offset < next_offset)
                    else f.is_usual and f.base_offset = next_offset end;
                exit when are_usual_rows is not true or most <= 0 or bytes_left <= 0;
                continue when f.last_offset < next_offset;
                count := least(most, f.last_offset - next_offset + 1);
                if taken = '{}' then
                    taken := array[row(next_offset, next_offset, 'acquired', 1, in_member_number, in_call_number, until,
                                       null, null, null, null, null)::msgtx.share_span];
                end if;
                next_offset := next_offset + count;
                next_token := 'stable ' || f.identity;
                taken[1].last_offset := next_offset - 1;
                most := most - count;
                bytes_left := bytes_left - f.byte_size;
            end loop;
            are_usual_rows := are_usual_rows and rows_found > 0;
        end if;
        -- A few rows of the log are mostly enough: more are looked for if they were not.
        rows_at_once := 4;
        while most > 0 and bytes_left > 0 and not is_repeated and not alone and are_usual_rows is not true loop
            rows_found := 0;
            start := next_offset;
            for f in select b.base_offset, b.last_offset, b.visible, b.identity,
                            home.ordering = 'key' or b.header_keys @> '{msgtx.deliver-at}' as is_divided
                     from msgtx.fetch_batches(
                         array[id], array[next_offset], array[next_token], home.isolation, bytes_left, rows_at_once) b
            loop
                exit when f.base_offset is null or most <= 0;
                rows_found := rows_found + 1;
                if f.visible and f.is_divided then
                    next_offset := greatest(f.base_offset, next_offset);
                    while most > 0 and next_offset <= f.last_offset loop
                        select d.* into part from msgtx.divide_records(
                            home.group_id, id, home.ordering, next_offset, least(f.last_offset, next_offset + 2 * most + 1000), moment, most,
                            foreign_keys, next_due, waiting_keys) d;
                        next_offset := part.next_offset;
                        next_due := part.next_due;
                        waiting_keys := part.waiting_keys;
                        for at in 1 .. cardinality(part.first_offsets) loop
                            if taken[cardinality(taken)].last_offset = part.first_offsets[at] - 1
                               and taken[cardinality(taken)].delivery_count = 1 then
                                taken[cardinality(taken)].last_offset := part.last_offsets[at];
                            else
                                taken := taken || row(part.first_offsets[at], part.last_offsets[at], 'acquired', 1, in_member_number,
                                                      in_call_number, until, null, null, null, null, null)::msgtx.share_span;
                            end if;
                            most := most - (part.last_offsets[at] - part.first_offsets[at] + 1);
                        end loop;
                    end loop;
                elsif f.visible then
                    count := least(most, f.last_offset - greatest(f.base_offset, next_offset) + 1);
                    next_offset := greatest(f.base_offset, next_offset) + count;
                    if taken[cardinality(taken)].last_offset = next_offset - count - 1
                       and taken[cardinality(taken)].delivery_count = 1 then
                        taken[cardinality(taken)].last_offset := next_offset - 1;
                    else
                        taken := taken || row(next_offset - count, next_offset - 1, 'acquired', 1,
                                              in_member_number, in_call_number, until, null, null, null, null, null)::msgtx.share_span;
                    end if;
                    most := most - count;
                else
                    next_offset := f.last_offset + 1;
                end if;
                next_token := case home.isolation when 'read_committed' then 'stable ' else 'seen ' end || f.identity;
            end loop;
            exit when rows_found < rows_at_once;
            rows_at_once := least(1000, 4 * rows_at_once);
            bytes_left := bytes_left - coalesce((
                select sum(b.byte_size) from msgtx.record_batch b
                where b.partition_id = id and b.base_offset >= start and b.base_offset < next_offset), 0);
        end loop;

        lock_ms := home.record_lock_duration_ms;
        left_over := taken;
        taken := '{}';
        foreach span in array left_over loop
            before := room;
            for f in
                select greatest(b.base_offset, span.first_offset) as first_here, least(b.last_offset, span.last_offset) as last_here,
                       b.*, 1 + h.before as begins, h.upto, h.before > 0 or h.upto < b.record_count as is_part
                from msgtx.record_batch b
                cross join lateral (
                    select case when b.offset_deltas is null then greatest(0, span.first_offset - b.base_offset)
                           else (select count(*) from unnest(b.offset_deltas) d where b.base_offset + d < span.first_offset) end,
                           case when b.offset_deltas is null then least(b.record_count, span.last_offset - b.base_offset + 1)
                           else (select count(*) from unnest(b.offset_deltas) d where b.base_offset + d <= span.last_offset) end
                    ) h(before, upto)
                where b.partition_id = id and b.base_offset <= span.last_offset
                  and b.base_offset >= (
                      select e.base_offset from msgtx.record_batch e
                      where e.partition_id = id and e.base_offset <= span.first_offset order by e.base_offset desc limit 1)
                order by b.base_offset
            loop
                continue when f.upto < f.begins;
                partition_id := id;
                first_offset := f.first_here;
                last_offset := f.last_here;
                delivery_count := span.delivery_count;
                max_timestamp := f.max_timestamp;
                offsets := case when f.offset_deltas is not null
                    then array(select f.base_offset + d from unnest(f.offset_deltas[f.begins:f.upto]) d) end;
                keys := case when f.is_part then f.keys[f.begins:f.upto] else f.keys end;
                "values" := case when f.is_part then f."values"[f.begins:f.upto] else f."values" end;
                timestamps := case when f.is_part then f.timestamps[f.begins:f.upto] else f.timestamps end;
                header_counts := f.header_counts;
                header_keys := f.header_keys;
                header_values := f.header_values;
                if f.is_part and f.header_counts is not null then
                    count := coalesce((select sum(c) from unnest(f.header_counts[:f.begins - 1]) c), 0);
                    header_counts := f.header_counts[f.begins:f.upto];
                    most := (select sum(c) from unnest(header_counts) c);
                    header_keys := f.header_keys[count + 1:count + most];
                    header_values := f.header_values[count + 1:count + most];
                end if;
                room := room - (f.upto - f.begins + 1);
                return next;
            end loop;
            if room < before then  -- else its records are gone, since the log was compacted
                taken := taken || span;
            end if;
        end loop;

        if not is_repeated and (left_over <> '{}' or is_met or next_offset is distinct from state.next_offset
                                or next_due is distinct from state.next_due) then
            insert into msgtx.share_state (group_id, partition_id, version, next_offset, next_token, spans, next_due, waiting_keys)
            values (home.group_id, id, coalesce(state.version, 0) + 1, next_offset, next_token, spans || taken, next_due, waiting_keys);
        end if;
        exit when alone;
    end loop;
    if answers <> '{}' and in_call_number is distinct from home.answered_call then
        insert into msgtx.share_call (member_number, call_number) values (in_member_number, in_call_number);
        is_flushed := is_flushed or flushes;
    end if;
    if has_passed and room = max_records then
        partition_id := null;
        return next;
    end if;
    if is_flushed then
        ignored := msgtx.flush_at_commit();
    end if;
end $$;
