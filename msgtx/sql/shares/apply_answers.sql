-- apply_answers(groups, members, partitions, ranges, …) answers for records that members have acquired: all of it, or
-- nothing. Ranges do not overlap. The caller has looked at rights, but for that to dead letters, and at the transaction.
--   answers   accept: it is done; reject: it is a dead letter (bury_records); release: it is available, at once or after a
--             delay (null: the group's back-off); renew: its lock begins anew
--   name      of the transaction in which they are pending until its decision; null, or decided in this one: they hold now
--   call      counted by the member. In a transaction it answers with the rows that a repeated call has written already.
--   one row for each part of a range that is refused; then nothing was written
--     InvalidRecordState    the member does not hold it (any more), or its topic was deleted
--     TransactionConflict   it is acknowledged in a transaction that is not decided, this one perhaps
-- Locks the partitions of dead letters that it writes, then share partitions (exclusive, each ascending). Reads
-- consumer_group, group_member, group_heartbeat, partition. Writes share_state, share_pending, share_group; share_parked
-- through park_delayed, record_batch through bury_records.
-- long: it looks at all answers before it applies the first one
create function msgtx.apply_answers(
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    answers text[], reasons text[], delays_ms int[], in_call_number bigint default null,
    in_producer_id bigint default null, in_producer_epoch int default null, in_transaction_number bigint default null)
returns table (error text, group_name text, partition_id int, first_offset bigint, last_offset bigint)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    known constant text[] := case when in_producer_id is null then '{accept,release,reject,renew}'
        else '{accept,release,reject}' end;
    reason_characters constant int := 1000;  -- it has to fit into its topic with its record
    g msgtx.share_group;
    state record;
    spans msgtx.share_span[];
    dead msgtx.share_span[];
    held msgtx.share_span;
    id int;
    asked record;
    moment timestamptz;
    refused boolean := false;
    ignored boolean;
begin
    -- The usual case, row by row (see append_and_decide): a member accepts one range, all that it acquired in a call.
    if cardinality(answers) = 1 and answers[1] = 'accept' and in_producer_id is null then
        g := msgtx.share_group_of(group_names[1], member_numbers[1]);
        ignored := msgtx.lock_share_partition(g.group_id, partition_ids[1]);
        select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys, (
                   select true from msgtx.partition p where p.partition_id = partition_ids[1] limit 1) as is_there
        into state from msgtx.share_state s
        where s.group_id = g.group_id and s.partition_id = partition_ids[1] order by s.version desc limit 1;
        id := 0;
        foreach held in array coalesce(state.spans, '{}') loop
            id := id + 1;
            exit when held.first_offset = first_offsets[1];
        end loop;
        if state.is_there and held.first_offset = first_offsets[1] and held.last_offset = last_offsets[1]
            and held.status = 'acquired'
           and held.member_number = member_numbers[1]
           and msgtx.is_running(held.locked_until, g.longest_lock_ms, msgtx.clock())
           and (g.ordering = 'none' or not exists (  -- an earlier record of the key may be to be delivered again
               select from unnest(state.spans) s
               where s.first_offset < held.first_offset and (
                   s.status <> 'acquired' or not msgtx.is_running(s.locked_until, g.longest_lock_ms, msgtx.clock()))))
           and (
               select not msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, msgtx.clock())
               from msgtx.group_member m
               cross join lateral (
                   select h.heartbeat_at from msgtx.group_heartbeat h where h.member_number = m.member_number
                   order by h.heartbeat_number desc limit 1) newest
               where m.member_number = member_numbers[1]) then
            insert into msgtx.share_state (
                group_id, partition_id, version, next_offset, next_token, spans, next_due, waiting_keys)
            values (g.group_id, partition_ids[1], state.version + 1, state.next_offset, state.next_token,
                    state.spans[:id - 1] || state.spans[id + 1:], state.next_due, state.waiting_keys);
            return;
        end if;
    end if;
    if exists (
        select from (
            select u.first_offset, u.last_offset, u.answer, lag(u.last_offset) over (
                       partition by u.group_name, u.partition_id order by u.first_offset) as before
            from unnest(group_names, partition_ids, first_offsets, last_offsets, answers)
                u(group_name, partition_id, first_offset, last_offset, answer)) a
        where (a.answer = any(known) and a.first_offset <= a.last_offset
            and coalesce(a.first_offset > a.before, true)) is not true)
    then
        raise exception using errcode = 'MX042', message = format(
            'an answer is one of %s, for a range of offsets that no other one has', array_to_string(known, ', ')),
            detail = jsonb_build_object('name', 'answers', 'limit', known);
    end if;
    if array_position(answers, 'reject') is not null then
        ignored := msgtx.require_dead_letters(array(
            select distinct u.group_name from unnest(group_names, answers) u(group_name, answer) where u.answer = 'reject'));
        -- The right may have come after the join: the next look writes records rejected in a transaction.
        update msgtx.share_group s set writes_dead_letters = true
        where not s.writes_dead_letters and s.group_id in (
            select c.group_id from unnest(group_names, answers) u(group_name, answer)
            join msgtx.consumer_group c on c.name = u.group_name where u.answer = 'reject');
    end if;
    if in_producer_id is null then
        foreach id in array msgtx.dead_letter_partitions(group_names, partition_ids, answers) loop
            ignored := msgtx.lock_partition(id);
        end loop;
    end if;
    for asked in
        select c.group_id, u.group_name, u.member_number, u.partition_id,
               array_agg(u.first_offset order by u.first_offset) as firsts,
                   array_agg(u.last_offset order by u.first_offset) as lasts,
               array_agg(u.answer order by u.first_offset) as answers
        from unnest(group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers)
            u(group_name, member_number, partition_id, first_offset, last_offset, answer)
        left join lateral (select c.group_id from msgtx.consumer_group c where c.name = u.group_name limit 1) c on true
        group by c.group_id, u.group_name, u.member_number, u.partition_id
        order by msgtx.share_partition_key(c.group_id, u.partition_id)
    loop
        ignored := msgtx.lock_share_partition(asked.group_id, asked.partition_id);
        g := msgtx.share_group_of(asked.group_name, asked.member_number);
        return query
        select case (c.span).status when 'pending' then 'TransactionConflict' else 'InvalidRecordState' end,
               asked.group_name, asked.partition_id, c.first_offset, c.last_offset
        from msgtx.cut_spans(coalesce((
                select msgtx.current_spans(g, s.partition_id, s.spans, 0, msgtx.clock()) from msgtx.share_state s
                where s.group_id = g.group_id and s.partition_id = asked.partition_id
                  and exists (select from msgtx.partition p where p.partition_id = asked.partition_id)
                order by s.version desc limit 1), '{}'),
            asked.firsts, asked.lasts, asked.answers) c
        where c.answer is not null
          and ((c.span).member_number = asked.member_number and case (c.span).status
                   when 'acquired' then true
                   when 'pending' then (c.span).call_number = in_call_number and (c.span).answer = c.answer
                       and (c.span).producer_id = in_producer_id and (c.span).producer_epoch = in_producer_epoch
                       and (c.span).transaction_number = in_transaction_number end) is not true;
        refused := refused or found;
    end loop;
    if refused then
        return;
    end if;
    for asked in
        select c.group_id, u.group_name, u.member_number, u.partition_id,
               array_agg(u.first_offset order by u.first_offset) as firsts,
                   array_agg(u.last_offset order by u.first_offset) as lasts,
               array_agg(u.answer order by u.first_offset) as answers,
                   array_agg(left(u.reason, reason_characters) order by u.first_offset) as reasons,
               array_agg(u.delay_ms order by u.first_offset) as delays
        from unnest(group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons, delays_ms)
            u(group_name, member_number, partition_id, first_offset, last_offset, answer, reason, delay_ms)
        cross join lateral (select c.group_id from msgtx.consumer_group c where c.name = u.group_name limit 1) c
        group by c.group_id, u.group_name, u.member_number, u.partition_id
    loop
        g := msgtx.share_group_of(asked.group_name, asked.member_number);
        select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys into state
            from msgtx.share_state s
        where s.group_id = g.group_id and s.partition_id = asked.partition_id order by s.version desc limit 1;
        moment := msgtx.clock();
        spans := msgtx.current_spans(g, asked.partition_id, state.spans, 0, moment);
        if g.ordering = 'key' and array_position(asked.answers, 'release') is not null then
            -- The member's later records with the same key are released with it, so that nobody processes them first.
            select array_agg(u.first_offset order by u.first_offset), array_agg(u.last_offset order by u.first_offset),
                   array_agg(u.answer order by u.first_offset), array_agg(u.reason order by u.first_offset),
                   array_agg(u.delay_ms order by u.first_offset)
            into asked.firsts, asked.lasts, asked.answers, asked.reasons, asked.delays
            from (
                select a.first_offset, a.last_offset, a.answer, a.reason, a.delay_ms
                from unnest(asked.firsts, asked.lasts, asked.answers, asked.reasons, asked.delays)
                    a(first_offset, last_offset, answer, reason, delay_ms)
                union all
                select b.offset_behind, b.offset_behind, 'release', null, 0
                from msgtx.held_behind(spans, asked.partition_id, asked.firsts, asked.lasts,
                    asked.answers) b(offset_behind)) u;
        end if;
        spans := array(
            select case
                when c.answer is null or (c.span).status = 'pending' then
                    row(c.first_offset, c.last_offset, (c.span).status, (c.span).delivery_count, (c.span).member_number,
                        (c.span).call_number, (c.span).locked_until, (c.span).producer_id, (c.span).producer_epoch,
                        (c.span).transaction_number, (c.span).answer, (c.span).reason)::msgtx.share_span
                when in_producer_id is not null then
                    row(c.first_offset, c.last_offset, 'pending', (c.span).delivery_count, asked.member_number,
                        in_call_number, case when c.answer = 'release' then msgtx.release_time(
                            g, (c.span).delivery_count, asked.delays[c.at_answer], moment) end,
                        in_producer_id, in_producer_epoch, in_transaction_number, c.answer,
                        asked.reasons[c.at_answer])::msgtx.share_span
                when c.answer = 'renew' then
                    row(c.first_offset, c.last_offset, 'acquired', (c.span).delivery_count, asked.member_number,
                        (c.span).call_number, moment + g.record_lock_duration_ms * interval '1 ms',
                        null, null, null, null, null)::msgtx.share_span
                when c.answer = 'reject' then
                    row(c.first_offset, c.last_offset, 'rejected', (c.span).delivery_count, asked.member_number, null, null,
                        null, null, null, null, asked.reasons[c.at_answer])::msgtx.share_span
                else row(c.first_offset, c.last_offset, 'available', (c.span).delivery_count, asked.member_number, null,
                         msgtx.release_time(g, (c.span).delivery_count, asked.delays[c.at_answer], moment),
                         null, null, null, null, coalesce(asked.reasons[c.at_answer], 'released'))::msgtx.share_span end
            from msgtx.cut_spans(spans, asked.firsts, asked.lasts, asked.answers) c
            where c.answer is distinct from 'accept' or in_producer_id is not null
            order by c.first_offset);
        dead := array(select s from unnest(spans) s where s.status = 'rejected');
        if dead <> '{}' then
            spans := array(select s from unnest(spans) s where s.status <> 'rejected')
                || (select b.left_over from msgtx.bury_records(asked.group_name, asked.partition_id, dead, null, null) b);
        end if;
        select d.spans, d.next_due into spans, state.next_due
        from msgtx.park_delayed(g.group_id, asked.partition_id, g.ordering, moment, spans, state.next_due) d;
        insert into msgtx.share_state (group_id, partition_id, version, next_offset, next_token, spans, next_due,
            waiting_keys)
        values (g.group_id, asked.partition_id, state.version + 1, state.next_offset, state.next_token, spans,
            state.next_due, state.waiting_keys);
        if in_producer_id is not null then
            insert into msgtx.share_pending (producer_id, producer_epoch, transaction_number, group_id, partition_id)
            values (in_producer_id, in_producer_epoch, in_transaction_number, g.group_id, asked.partition_id)
            on conflict do nothing;
        end if;
    end loop;
end $$;
