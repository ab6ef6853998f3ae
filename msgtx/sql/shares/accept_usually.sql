-- accept_usually(group, member, partition, first, last, call) accepts records in the usual case: all that the member
-- acquired in a call, at once; call null: in any one. → whether it has; else apply_answers judges. Row by row: see
-- append_and_decide. Locks the share partition.
-- Reads partition, consumer_group, share_group, group_member, group_heartbeat. Writes share_state.
create function msgtx.accept_usually(
    in_group_name text, in_member_number bigint, in_partition_id int, first_offset bigint, last_offset bigint,
    held_call bigint)
returns boolean language plpgsql volatile as $$
declare
    g constant msgtx.share_group := msgtx.share_group_of(in_group_name, in_member_number);
    state msgtx.share_state;
    held msgtx.share_span;
    place int;
    moment timestamptz;
    ignored boolean := msgtx.lock_share_partition(g.group_id, in_partition_id);
begin
    select s.* into state from msgtx.share_state_of(g.group_id, in_partition_id) s
    where exists (select from msgtx.partition p where p.partition_id = in_partition_id);
    moment := msgtx.clock();
    place := (
        select s.ordinality from unnest(state.spans) with ordinality s
        where s.first_offset = accept_usually.first_offset limit 1);
    held := state.spans[place];
    if (held.last_offset = accept_usually.last_offset
        and held.status = 'acquired' and held.member_number = in_member_number
        and coalesce(held.call_number = held_call, true)
        and msgtx.is_running(held.locked_until, g.longest_lock_ms, moment)
        and (g.ordering = 'none' or not exists (  -- an earlier record of the key may be to be delivered again
            select from (
                select array_agg(s.first_offset) as firsts, array_agg(s.last_offset) as lasts
                from unnest(state.spans) s
                where s.first_offset < held.first_offset and (
                    s.status <> 'acquired' or not msgtx.is_running(s.locked_until, g.longest_lock_ms, moment))) s
            cross join lateral msgtx.record_keys(in_partition_id, s.firsts, s.lasts) e
            join msgtx.record_keys(in_partition_id, array[held.first_offset], array[held.last_offset]) h
                on h.key_hash = e.key_hash))
        and (select not s.is_over from msgtx.session_of(in_member_number, moment) s)) is not true
    then
        return false;
    end if;
    state.version := state.version + 1;
    state.spans := state.spans[:place - 1] || state.spans[place + 1:];
    insert into msgtx.share_state values (state.*);
    return true;
end $$;
