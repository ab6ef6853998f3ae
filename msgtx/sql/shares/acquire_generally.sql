-- acquire_generally(group, member, call, partition, …) gives a member of a share group records of a partition: first those
-- that are to be delivered again, then new ones. The more often a record was delivered, the fewer come with it.
--   is_repeated        the call came before, and acquired records of another partition: here it gets only what it had
--   room, max_records  how many may come still, and how many of the whole call; letters: how many dead letters it may write
--   a row for each piece of a row of the log, as records_at, without columns behind inline_bytes. is_repeated: it had them
--   a row without offsets: so many dead letters, of so many bytes, were written; with 0, the next call looks further
-- The caller holds the share partition's lock, and has looked at rights and member. Tries locks of producers and of dead
-- letters' partitions. Reads partition, share_topic. Writes share_state; share_parked through sort_parked and take_new,
-- record_batch through bury_dead, transaction_decision through expire_pending and take_new. Flushed if it wrote dead
-- letters.
create function msgtx.acquire_generally(
    group_name text, g msgtx.share_group, in_member_number bigint, in_call_number bigint, id int, room int, max_records int,
    max_bytes bigint, in_is_repeated boolean, letters int, inline_bytes bigint)
returns table (
    is_repeated boolean, record_count int, byte_size bigint, first_offset bigint, last_offset bigint, delivery_count int,
    max_timestamp bigint, offsets bigint[], keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile as $$
#variable_conflict use_column
declare
    moment constant timestamptz := msgtx.clock();
    log_start constant bigint := (select p.log_start_offset from msgtx.partition p where p.partition_id = id);
    acquired constant msgtx.share_span := row(
        null, null, 'acquired', null, in_member_number, in_call_number,
        moment + g.record_lock_duration_ms * interval '1 ms', null, null, null, null, null)::msgtx.share_span;
    before msgtx.share_state;
    state msgtx.share_state;
    taken msgtx.share_span[] := '{}';
    stored msgtx.share_span[] := '{}';
    foreign_keys bigint[] := '{}';
    most int := least(room, g.max_record_locks);
    bytes_left bigint := max_bytes;
    place int := 0;
    found_place int;
    alone boolean := false;
    is_changed boolean := false;
    is_over boolean := false;
    ignored boolean;
begin
    if log_start is null then
        return;
    end if;
    is_repeated := in_is_repeated;
    select s.* into before from msgtx.share_state_of(g.group_id, id) s;
    state := before;
    if before.version is null then
        state := row(g.group_id, id, 0, msgtx.share_beginning(g, id, log_start, moment), null, '{}', null,
                     '{}')::msgtx.share_state;
    else
        state.next_offset := greatest(before.next_offset, log_start);
        state.next_token := case when before.next_offset >= log_start then before.next_token end;
        state.spans := msgtx.current_spans(g, id, state.spans, log_start, moment);
        if msgtx.expire_pending(state.spans) then
            state.spans := msgtx.current_spans(g, id, state.spans, log_start, moment);
        end if;
    end if;
    if state.spans <> '{}' then
        most := least(room, g.max_record_locks - coalesce((
            select sum(s.last_offset - s.first_offset + 1)::int from unnest(state.spans) s
            where s.status <> 'available' or s.delivery_count >= g.delivery_count_limit), 0));
        -- What this call acquired when it came the first time: its answer was lost.
        taken := array(
            select s from unnest(state.spans) s where s.status = 'acquired' and s.member_number = in_member_number
                                                  and s.call_number = in_call_number order by s.first_offset);
        is_repeated := is_repeated or taken <> '{}';
    end if;
    if not is_repeated then
        select p.spans, p.next_due, p.waiting_keys, p.foreign_keys, p.is_met
        into state.spans, state.next_due, state.waiting_keys, foreign_keys, is_changed
        from msgtx.sort_parked(
            g, id, in_member_number, in_call_number, log_start, moment, most, state.spans, state.next_due,
            state.waiting_keys) p;
        if state.spans <> '{}' then
            select b.spans, b.buried, b.bytes, is_changed or b.is_met into state.spans, record_count, byte_size, is_changed
            from msgtx.bury_dead(group_name, id, g.delivery_count_limit, letters, max_bytes, state.spans) b;
            if record_count > 0 then
                ignored := msgtx.flush_at_commit();
                bytes_left := bytes_left - byte_size;
                return next;
            end if;
            select t.spans, t.most, t.bytes_left, t.taken, t.alone into state.spans, most, bytes_left, taken, alone
            from msgtx.take_again(g, id, acquired, room = max_records, max_records, state.spans, most, bytes_left) t;
        end if;
        if not alone then
            select n.next_offset, n.next_token, n.next_due, n.waiting_keys, n.taken, n.is_over
            into state.next_offset, state.next_token, state.next_due, state.waiting_keys, taken, is_over
            from msgtx.take_new(
                g, id, acquired, foreign_keys, moment, most, bytes_left, state.next_offset, state.next_token, state.next_due,
                state.waiting_keys, taken) n;
        end if;
    end if;

    for found_place, record_count, byte_size, first_offset, last_offset, max_timestamp, offsets, keys, "values", timestamps,
        header_counts, header_keys, header_values in
        select r.* from msgtx.records_at(
            array_fill(id, array[cardinality(taken)]), array(select s.first_offset from unnest(taken) s),
            array(select s.last_offset from unnest(taken) s), inline_bytes) r
    loop
        if found_place > place then  -- a span whose records are gone, since the log was compacted, has no row
            place := found_place;
            stored := stored || taken[place];
        end if;
        delivery_count := taken[place].delivery_count;
        -- Other records of the row may be the smaller ones.
        inline_bytes := inline_bytes - msgtx.batch_bytes(keys, "values", header_keys, header_values);
        if inline_bytes >= 0 is not true then
            select null, null, null, null, null, null, null
            into offsets, keys, "values", timestamps, header_counts, header_keys, header_values;
        end if;
        return next;
    end loop;
    -- there may be more behind what is gone: the next call looks
    if stored = '{}' and (taken <> '{}' or is_over) then
        select 0, 0, null into record_count, byte_size, first_offset;
        return next;
    end if;

    if not is_repeated and (
        taken <> '{}' or is_changed or (state.next_offset, state.next_due, state.waiting_keys)
            is distinct from (before.next_offset, before.next_due, before.waiting_keys)) then
        state.version := state.version + 1;
        state.spans := state.spans || stored;
        insert into msgtx.share_state values (state.*) on conflict do nothing;
        if not found then  -- a member that joined for the topic has begun with it since
            raise exception using errcode = '55P03', message = format('partition %s is new to the group: call again', id);
        end if;
    end if;
end $$;
