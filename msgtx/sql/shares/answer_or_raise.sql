-- answer_or_raise(groups, members, partitions, ranges, answers, reasons, delays, call, name, held) answers for records as
-- apply_answers does, or raises the first refusal (MX000).
-- Locks share partitions (exclusive, ascending). Reads partition, topic. Writes through apply_answers. Flushed.
create function msgtx.answer_or_raise(
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    answers text[], reasons text[], delays_ms int[], in_call_number bigint default null,
    in_producer_id bigint default null, in_producer_epoch int default null, in_transaction_number bigint default null,
    held_calls bigint[] default null
) returns boolean language plpgsql volatile as $$
declare
    refused record;
begin
    select r.error, r.group_name, r.first_offset, r.last_offset, t.name as topic, p.partition_index,
           coalesce(t.name || '-' || p.partition_index, r.partition_id::text) as place
    into refused
    from msgtx.apply_answers(group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons,
                             delays_ms, in_call_number, in_producer_id, in_producer_epoch, in_transaction_number,
                             held_calls) r
    left join lateral (select p.* from msgtx.partition p where p.partition_id = r.partition_id limit 1) p on true
    left join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t on true
    order by r.partition_id, r.first_offset limit 1;
    if found then
        raise exception using errcode = 'MX000', column = refused.error, message = format(
            'share group %s: %s offset %s%s: %s', refused.group_name, refused.place, refused.first_offset,
            case when refused.last_offset > refused.first_offset then ' to ' || refused.last_offset else '' end,
            case refused.error when 'TransactionConflict'
                then 'it is acknowledged in a transaction that is not decided'
                else 'the lock has expired, or the session of this member is over, and others get it; or the topic was'
                    ' deleted' end),
            detail = jsonb_build_object(
                'group', refused.group_name, 'topic', refused.topic, 'partition', refused.partition_index,
                'offset', refused.first_offset);
    end if;
    return msgtx.flush_at_commit();
end $$;
