-- apply_answers_once(groups, members, partitions, ranges, answers, reasons, delays, call) is apply_answers for a numbered
-- call of one member. An answer is not refused if an earlier try of the same call has applied it in between.
--   one row for each part of a range that is refused; then nothing was written
-- Locks as apply_answers. Reads share_call. Writes share_state and the tables of apply_answers.
create function msgtx.apply_answers_once(
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    answers text[], reasons text[], delays_ms int[], in_call_number bigint)
returns table (error text, group_name text, partition_id int, first_offset bigint, last_offset bigint)
language plpgsql volatile as $$
#variable_conflict use_column
begin
    for error, group_name, partition_id, first_offset, last_offset in
        select r.* from msgtx.apply_answers(
            group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons, delays_ms) r
    loop
        exit when exists (select from msgtx.share_call c
                          where c.member_number = member_numbers[1] and c.call_number >= in_call_number);
        return next;
    end loop;
end $$;
