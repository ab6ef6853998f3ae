-- write_answers(group, member, partition, ranges, answers, …, call, name) applies answers of a member for records of a share
-- partition, which apply_answers has looked at. Ranges ascend. name null: they hold now, else from the decision on.
-- The caller holds the locks. Writes share_state, share_pending; share_parked through park_delayed, record_batch through
-- bury_records.
create function msgtx.write_answers(
    g msgtx.share_group, group_name text, in_member_number bigint, in_partition_id int, firsts bigint[], lasts bigint[],
    answers text[], reasons text[], delays int[], in_call_number bigint, in_producer_id bigint, in_producer_epoch int,
    in_transaction_number bigint
) returns boolean language plpgsql volatile as $$
#variable_conflict use_column
declare
    moment constant timestamptz := msgtx.clock();
    state msgtx.share_state;
    dead msgtx.share_span[];
begin
    select s.* into state from msgtx.share_state_of(g.group_id, in_partition_id) s;
    state.spans := msgtx.current_spans(g, in_partition_id, state.spans, 0, moment);
    if g.ordering = 'key' and array_position(answers, 'release') is not null then
        -- The member's later records with the same key are released with it, so that nobody processes them first.
        select array_agg(u.first_offset order by u.first_offset), array_agg(u.last_offset order by u.first_offset),
               array_agg(u.answer order by u.first_offset), array_agg(u.reason order by u.first_offset),
               array_agg(u.delay_ms order by u.first_offset)
        into firsts, lasts, answers, reasons, delays
        from (
            select a.first_offset, a.last_offset, a.answer, a.reason, a.delay_ms
            from unnest(firsts, lasts, answers, reasons, delays)
                a(first_offset, last_offset, answer, reason, delay_ms)
            union all
            select b.offset_behind, b.offset_behind, 'release', null, 0
            from msgtx.held_behind(state.spans, in_partition_id, firsts, lasts, answers)
                b(offset_behind)) u;
    end if;
    state.spans := array(
        select case
            when c.answer is null or (c.span).status = 'pending' then c.span
            when in_producer_id is not null then
                row(c.first_offset, c.last_offset, 'pending', (c.span).delivery_count, in_member_number,
                    in_call_number, case when c.answer = 'release' then msgtx.release_time(
                        g, (c.span).delivery_count, delays[c.at_answer], moment) end,
                    in_producer_id, in_producer_epoch, in_transaction_number, c.answer,
                    reasons[c.at_answer])::msgtx.share_span
            when c.answer = 'renew' then
                row(c.first_offset, c.last_offset, 'acquired', (c.span).delivery_count, in_member_number,
                    (c.span).call_number, moment + g.record_lock_duration_ms * interval '1 ms',
                    null, null, null, null, null)::msgtx.share_span
            when c.answer = 'reject' then
                row(c.first_offset, c.last_offset, 'rejected', (c.span).delivery_count, in_member_number, null, null,
                    null, null, null, null, reasons[c.at_answer])::msgtx.share_span
            else row(c.first_offset, c.last_offset, 'available', (c.span).delivery_count, in_member_number, null,
                     msgtx.release_time(g, (c.span).delivery_count, delays[c.at_answer], moment),
                     null, null, null, null, coalesce(reasons[c.at_answer], 'released'))::msgtx.share_span end
        from msgtx.cut_spans(state.spans, firsts, lasts, answers) c
        where c.answer is distinct from 'accept' or in_producer_id is not null
        order by c.first_offset);
    dead := array(select s from unnest(state.spans) s where s.status = 'rejected');
    if dead <> '{}' then
        state.spans := array(select s from unnest(state.spans) s where s.status <> 'rejected')
            || (select b.left_over from msgtx.bury_records(group_name, in_partition_id, dead, null, null) b);
    end if;
    select d.spans, d.next_due into state.spans, state.next_due
    from msgtx.park_delayed(g.group_id, in_partition_id, g.ordering, moment, state.spans, state.next_due) d;
    state.version := state.version + 1;
    insert into msgtx.share_state values (state.*);
    if in_producer_id is not null then
        insert into msgtx.share_pending (producer_id, producer_epoch, transaction_number, group_id, partition_id)
        values (in_producer_id, in_producer_epoch, in_transaction_number, g.group_id, in_partition_id)
        on conflict do nothing;
    end if;
    return true;
end $$;
