-- current_spans(group, partition, spans, log_start, moment) → a share partition's spans as they hold now, ascending. A
-- record is available if its lock or its member's session has expired. A pending one follows the decision of its
-- transaction: acknowledged (and in no span), rejected, or available. The last member and the reason stay with it, for a
-- dead letter. Records that retention has removed are gone. With ordering=key a member holds nothing behind an earlier
-- record of the same key that is to be delivered again: the later ones are available, too. A record that is to become a
-- dead letter, or was removed by retention, holds nothing back. Reads group_member, group_heartbeat, transaction_decision,
-- record_batch.
create function msgtx.current_spans(
    g msgtx.share_group, in_partition_id int, spans msgtx.share_span[], log_start bigint, moment timestamptz)
returns msgtx.share_span[] language plpgsql volatile as $$
declare
    living constant bigint[] := array(
        select m.member_number
        from (select distinct s.member_number from unnest(spans) s where s.status = 'acquired') m
        cross join lateral msgtx.session_of(m.member_number, moment) o
        where not o.is_over);
    again msgtx.share_span[];
    behind bigint[];
begin
    if spans = '{}' then
        return spans;
    end if;
    spans := array(
        select case when holds.status = s.status
                   then row(greatest(s.first_offset, log_start), s.last_offset, s.status, s.delivery_count, s.member_number,
                            s.call_number, s.locked_until, s.producer_id, s.producer_epoch, s.transaction_number, s.answer,
                            s.reason)::msgtx.share_span
                   else row(greatest(s.first_offset, log_start), s.last_offset, holds.status, s.delivery_count,
                            s.member_number, null, case when holds.is_released then s.locked_until end,
                            null, null, null, null, case
                                when holds.status = 'rejected' or holds.is_released then s.reason
                                when s.status = 'pending' then 'transaction aborted'
                                when msgtx.is_running(s.locked_until, g.longest_lock_ms, moment) then 'session over'
                                else 'lock expired' end)::msgtx.share_span end
        from unnest(spans) s
        left join lateral msgtx.decision_of(s.producer_id, s.producer_epoch, s.transaction_number) decided on true
        cross join lateral (
            select s.answer = 'release' and decided.outcome = 'COMMIT', case s.status
                when 'acquired' then case
                    when s.member_number = any(living) and msgtx.is_running(s.locked_until, g.longest_lock_ms, moment)
                    then 'acquired' else 'available' end
                when 'pending' then case decided.outcome
                    when 'COMMIT' then case s.answer when 'accept' then 'acknowledged' when 'reject' then 'rejected'
                        else 'available' end
                    when 'ABORT' then 'available' else 'pending' end
                else s.status end offset 0) holds(is_released, status)
        where holds.status <> 'acknowledged' and s.last_offset >= log_start
        order by s.first_offset);
    if g.ordering = 'key' then
        again := array(
            select s from unnest(spans) s
            where s.status = 'available' and s.delivery_count > 0 and s.delivery_count < g.delivery_count_limit
              and s.last_offset >= (select p.log_start_offset from msgtx.partition p
                  where p.partition_id = in_partition_id));
    end if;
    if again <> '{}' then
        behind := array(
            select h.offset_behind
            from msgtx.held_behind(
                spans, in_partition_id, array(select s.first_offset from unnest(again) s),
                array(select s.last_offset from unnest(again) s), array_fill('release'::text, array[cardinality(again)]))
                h(offset_behind)
            order by h.offset_behind);
        if behind <> '{}' then
            spans := array(
                select case when c.answer is null then c.span
                    else row(c.first_offset, c.last_offset, 'available', (c.span).delivery_count, (c.span).member_number,
                             null, null, null, null, null, null, 'released')::msgtx.share_span end
                from msgtx.cut_spans(spans, behind, behind, array_fill('release'::text, array[cardinality(behind)])) c
                order by c.first_offset);
        end if;
    end if;
    return spans;
end $$;
