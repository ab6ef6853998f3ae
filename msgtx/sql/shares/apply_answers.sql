-- apply_answers(groups, members, partitions, ranges, …) answers for records that members have acquired: all of it, or
-- nothing. Ranges do not overlap. The caller has looked at rights, but for that to dead letters, and at the transaction.
--   answers   accept: it is done; reject: it is a dead letter (bury_records); release: it is available, at once or after a
--             delay (null: the group's back-off); renew: its lock begins anew
--   name      of the transaction in which they are pending until its decision; null, or decided in this one: they hold now
--   call, held   of the member: a repeated one finds its own rows in a transaction; that which acquired a range, null: any
--   one row for each part of a range that is refused; then nothing was written
--     InvalidRecordState    the member does not hold it (any more), or its topic was deleted
--     TransactionConflict   it is acknowledged in a transaction that is not decided, this one perhaps
-- Locks the partitions of dead letters that it writes, then share partitions (exclusive, each ascending). Reads
-- consumer_group, group_member, group_heartbeat, partition. Writes share_state, share_pending, share_group; share_parked
-- through park_delayed, record_batch through bury_records.
create function msgtx.apply_answers(
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    answers text[], reasons text[], delays_ms int[], in_call_number bigint default null,
    in_producer_id bigint default null, in_producer_epoch int default null, in_transaction_number bigint default null,
    held_calls bigint[] default null)
returns table (error text, group_name text, partition_id int, first_offset bigint, last_offset bigint)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    known constant text[] := case when in_producer_id is null then '{accept,release,reject,renew}'
        else '{accept,release,reject}' end;
    g msgtx.share_group;
    id int;
    asked record;
    refused boolean := false;
    ignored boolean;
begin
    if cardinality(answers) = 1 and answers[1] = 'accept' and in_producer_id is null and msgtx.accept_usually(
        group_names[1], member_numbers[1], partition_ids[1], first_offsets[1], last_offsets[1], held_calls[1])
    then
        return;
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
        select a.* from msgtx.answers_by_partition(
            group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons, delays_ms,
            held_calls) a
        order by msgtx.share_partition_key(a.group_id, a.partition_id)
    loop
        ignored := msgtx.lock_share_partition(asked.group_id, asked.partition_id);
        g := msgtx.share_group_of(asked.group_name, asked.member_number);
        return query
        select case (c.span).status when 'pending' then 'TransactionConflict' else 'InvalidRecordState' end,
               asked.group_name, asked.partition_id, c.first_offset, c.last_offset
        from msgtx.cut_spans(coalesce((
                select msgtx.current_spans(g, s.partition_id, s.spans, 0, msgtx.clock())
                from msgtx.share_state_of(g.group_id, asked.partition_id) s
                where exists (select from msgtx.partition p where p.partition_id = asked.partition_id)), '{}'),
            asked.firsts, asked.lasts, asked.answers) c
        where c.answer is not null
          and ((c.span).member_number = asked.member_number and case (c.span).status
                   when 'acquired' then coalesce((c.span).call_number = asked.calls[c.at_answer], true)
                   when 'pending' then (c.span).call_number = in_call_number and (c.span).answer = c.answer
                       and (c.span).producer_id = in_producer_id and (c.span).producer_epoch = in_producer_epoch
                       and (c.span).transaction_number = in_transaction_number end) is not true;
        refused := refused or found;
    end loop;
    if refused then
        return;
    end if;
    for asked in
        select a.* from msgtx.answers_by_partition(
            group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons, delays_ms,
            held_calls) a
    loop
        g := msgtx.share_group_of(asked.group_name, asked.member_number);
        ignored := msgtx.write_answers(
            g, asked.group_name, asked.member_number, asked.partition_id, asked.firsts, asked.lasts, asked.answers,
            asked.reasons, asked.delays, in_call_number, in_producer_id, in_producer_epoch, in_transaction_number);
    end loop;
end $$;
