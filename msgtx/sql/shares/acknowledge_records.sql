-- acknowledge_records(groups, members, partitions, ranges, answers, reasons, delays) answers for records that members have
-- acquired, at once: all of it, or nothing; see apply_answers.
--   in_call_number  counted by the member (there is one then): the same one again, or an older one, has no effect. null: not
--                   repeated
--   reasons         of reject; null where none is given
--   delays_ms       of release; null: the group's back-off
-- Locks share partitions (exclusive, ascending). Writes share_call and, through apply_answers, share_state. Flushed.
-- right: consume
-- plan: look-ups
create function msgtx.acknowledge_records(
    group_names text[], member_numbers bigint[], partition_ids int[], first_offsets bigint[], last_offsets bigint[],
    answers text[], reasons text[], delays_ms int[], in_call_number bigint default null)
returns table (error text, group_name text, partition_id int, first_offset bigint, last_offset bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', partition_ids)
        and msgtx.require_names('group', group_names);
    -- A member waits for the answer to a call before it makes the next one: a late call has no caller any more.
    if in_call_number <= (select c.call_number from msgtx.share_call c where c.member_number = member_numbers[1]
                          order by c.call_number desc limit 1) then
        ignored := msgtx.flush_log();  -- it may have been answered in a call that did not flush
        return;
    end if;
    return query select r.* from msgtx.apply_answers_once(
        group_names, member_numbers, partition_ids, first_offsets, last_offsets, answers, reasons, delays_ms,
            in_call_number) r;
    if not found then
        ignored := msgtx.flush_at_commit();
        if in_call_number is not null then
            insert into msgtx.share_call (member_number, call_number) values (member_numbers[1], in_call_number)
            on conflict do nothing;
            if not found then  -- its first try has succeeded in between, perhaps in a call that did not flush
                ignored := msgtx.flush_log();
            end if;
        end if;
    end if;
end $$;
