-- acquire_generally(group, member, call, partition, …) gives a member of a share group records of a partition: first those
-- that are to be delivered again, then new ones. The more often a record was delivered, the fewer come with it.
--   is_repeated        the call came before, and acquired records of another partition: here it gets only what it had
--   room, max_records  how many may come still, and how many of the whole call; letters: how many dead letters it may write
--   a row for each piece of a row of the log, as records_at, without columns behind inline_bytes. is_repeated: it had them
--   a row without offsets: so many dead letters, of so many bytes, were written; with 0, the next call looks further
-- A record that may not be delivered again is a dead letter (bury_records). A delayed one, or one that waits for its key, is
-- parked. An overdue transaction that holds records back is aborted (I12). The caller holds the share partition's lock, and
-- has looked at rights and member. Tries locks of producers and of dead letters' partitions. Reads partition, record_batch,
-- transaction, transaction_decision, group_member, group_heartbeat. Writes share_state; share_parked (unpark_records,
-- hold_back_keys, park_delayed, divide_records), transaction_decision (expire_transaction), record_batch (bury_records).
-- Flushed if it wrote dead letters.
-- long: its steps share the state of the partition, which it reads and writes once
create function msgtx.acquire_generally(
    group_name text, g msgtx.share_group, in_member_number bigint, in_call_number bigint, id int, room int, max_records int,
    max_bytes bigint, in_is_repeated boolean, letters int, inline_bytes bigint)
returns table (
    is_repeated boolean, record_count int, byte_size bigint, first_offset bigint, last_offset bigint, delivery_count int,
        max_timestamp bigint, offsets bigint[],
    keys bytea[], "values" bytea[], timestamps bigint[], header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile as $$
#variable_conflict use_column
declare
    parked_at_once constant int := 200;  -- of what is parked and gone that a call drops
    expired_at_once constant int := 100;  -- who is still held back comes again
    moment constant timestamptz := msgtx.clock();
    until constant timestamptz := moment + g.record_lock_duration_ms * interval '1 ms';
    state record;
    spans msgtx.share_span[];
    taken msgtx.share_span[] := '{}';
    dead msgtx.share_span[];
    left_over msgtx.share_span[];
    span msgtx.share_span;
    f record;
    part record;
    log_start bigint;
    next_offset bigint;
    next_token text;
    next_due timestamptz;
    waiting_keys bigint[];
    foreign_keys bigint[] := '{}';
    most int;
    count int;
    start bigint;
    place bigint := 0;
    rows_at_once int := 4;
    rows_found int;
    -- that it looks at: those that compaction has emptied have neither records nor bytes, and others wait for the lock
    rows_left int := 2000;
    bytes_left bigint := max_bytes;
    alone boolean := false;
    is_inline boolean;
    is_met boolean := false;
    expired boolean := false;
    ended int := 0;
    ignored boolean;
begin
    is_repeated := in_is_repeated;
    select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys into state from msgtx.share_state s
    where s.group_id = g.group_id and s.partition_id = id order by s.version desc limit 1;
    log_start := (select p.log_start_offset from msgtx.partition p where p.partition_id = id);
    if log_start is null then
        return;
    end if;
    if state.version is null then
        -- What was made since the group began with the topic, or with its name, is read from its beginning. Else the client
        -- has not joined for the topic, and the group begins with it here.
        next_offset := case when exists (
                select from msgtx.partition p
                cross join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
                cross join lateral (
                    select from msgtx.share_topic k where k.group_id = g.group_id and k.topic_name = t.name limit 1) known
                where p.partition_id = id)
            then log_start else (select s.start_offset from msgtx.share_start_offsets(g, array[id], moment) s) end;
        next_token := null;
        spans := '{}';
    else
        next_offset := greatest(state.next_offset, log_start);
        next_token := case when next_offset = state.next_offset then state.next_token end;
        spans := msgtx.current_spans(g, id, state.spans, log_start, moment);
        for f in
            select distinct s.producer_id, s.producer_epoch, s.transaction_number from unnest(spans) s
            cross join lateral (
                select t.opened_at, t.timeout_ms, t.database_backend, t.seen_at from msgtx.transaction t
                where t.producer_id = s.producer_id and t.producer_epoch = s.producer_epoch
                  and t.transaction_number = s.transaction_number limit 1) t
            where s.status = 'pending'
              and (msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at)
                   or msgtx.is_deserted(s.producer_id, s.producer_epoch, s.transaction_number))
            limit expired_at_once
        loop
            expired := msgtx.expire_transaction(f.producer_id, f.producer_epoch, f.transaction_number) or expired;
        end loop;
        if expired then
            spans := msgtx.current_spans(g, id, spans, log_start, moment);
        end if;
    end if;
    next_due := state.next_due;
    waiting_keys := coalesce(state.waiting_keys, '{}');
    most := least(room, g.max_record_locks);
    if spans <> '{}' then
        most := least(room, g.max_record_locks - coalesce((
            select sum(s.last_offset - s.first_offset + 1)::int from unnest(spans) s
            where s.status <> 'available' or s.delivery_count >= g.delivery_count_limit), 0));
        -- What this call acquired when it came the first time: its answer was lost.
        taken := array(
            select s from unnest(spans) s where s.status = 'acquired' and s.member_number = in_member_number
                                            and s.call_number = in_call_number order by s.first_offset);
        is_repeated := is_repeated or taken <> '{}';
    end if;
    if not is_repeated then
        left_over := spans;
        if spans <> '{}' then
            select d.spans, d.next_due into spans, next_due
            from msgtx.park_delayed(g.group_id, id, g.ordering, moment, spans, next_due) d;
            if g.ordering = 'key' then
                foreign_keys := array(
                    select distinct r.key_hash from unnest(spans) s
                    cross join lateral msgtx.record_places(id, s.first_offset, s.last_offset) r
                    where s.status in ('acquired', 'pending') and s.member_number <> in_member_number
                        and r.key_hash is not null);
            end if;
        end if;
        if g.ordering = 'key' and log_start > 0 then
            select d.dropped, waiting_keys || d.key_hashes into count, waiting_keys
            from msgtx.drop_removed(g.group_id, id, parked_at_once, false) d;
            is_met := is_met or count > 0;
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
    if spans <> '{}' and not is_repeated then
        -- What was rejected in a transaction, or delivered as often as it may be and not acknowledged, is a dead letter.
        dead := array(
            select s from unnest(spans) s where s.status = 'rejected'
                or s.status = 'available' and s.delivery_count >= g.delivery_count_limit);
        if dead <> '{}' then
            select b.* into left_over, record_count, byte_size
                from msgtx.bury_records(group_name, id, dead, letters, max_bytes) b;
            is_met := is_met or left_over is distinct from dead;
            if record_count > 0 then
                ignored := msgtx.flush_at_commit();
                bytes_left := bytes_left - byte_size;
                return next;
            end if;
            spans := array(
                select s from unnest(spans) s where not (s.status = 'rejected'
                    or s.status = 'available' and s.delivery_count >= g.delivery_count_limit)) || left_over;
        end if;
        foreach span in array array(
            select s from unnest(spans) s where s.status = 'available' and s.delivery_count < g.delivery_count_limit) loop
            exit when most <= 0 or bytes_left <= 0 or alone;
            if span.delivery_count >= g.delivery_count_limit - 1 then
                if taken <> '{}' or room < max_records then
                    most := case when g.ordering = 'key' then 0 else most end;
                    continue;  -- a later poll takes it, and nothing else
                end if;
                alone := true;
            end if;
            count := least(most, span.last_offset - span.first_offset + 1,
                           case when alone then 1 else greatest(1, max_records >> least(30, 3 * span.delivery_count)) end);
            taken := taken || row(span.first_offset, span.first_offset + count - 1, 'acquired', span.delivery_count + 1,
                                  in_member_number, in_call_number, until, null, null, null, null, null)::msgtx.share_span;
            -- With ordering=key nothing is delivered past the rest of it.
            most := case when g.ordering = 'key' and count <= span.last_offset - span.first_offset then 0
                else most - count end;
        end loop;
        if taken <> '{}' then
            select r.spans, bytes_left - r.bytes into left_over, bytes_left
                from msgtx.fitting_spans(id, taken, bytes_left) r;
            most := case when taken = left_over then most else 0 end;
            taken := left_over;
            -- What is taken is cut off.
            left_over := '{}';
            count := 1;
            foreach span in array spans loop
                if span.first_offset = taken[count].first_offset then
                    span.first_offset := taken[count].last_offset + 1;
                    count := count + 1;
                end if;
                if span.first_offset <= span.last_offset then
                    left_over := left_over || span;
                end if;
            end loop;
            spans := left_over;
        end if;
    end if;

    -- A few rows of the log are mostly enough: more are looked for if they were not.
    while most > 0 and bytes_left > 0 and rows_left > 0 and not is_repeated and not alone loop
        rows_found := 0;
        start := next_offset;
        for f in select b.base_offset, b.last_offset, b.visible, b.identity, b.offset_deltas,
                        g.ordering = 'key' or b.header_keys @> '{msgtx.deliver-at}' as is_divided,
                        b.blocked_producer_id, b.blocked_epoch, b.blocked_number, b.blocked_overdue
                 from msgtx.fetch_batches(
                     array[id], array[next_offset], array[next_token], g.isolation, bytes_left, rows_at_once) b
        loop
            exit when f.base_offset is null or most <= 0;
            rows_found := rows_found + 1;
            rows_left := rows_left - 1;
            if f.visible and f.is_divided then
                next_offset := greatest(f.base_offset, next_offset);
                while most > 0 and next_offset <= f.last_offset loop
                    select d.* into part from msgtx.divide_records(
                        g.group_id, id, g.ordering, next_offset, least(f.last_offset, next_offset + 2 * most + 1000), moment,
                            most, foreign_keys, next_due, waiting_keys) d;
                    next_offset := part.next_offset;
                    next_due := part.next_due;
                    waiting_keys := part.waiting_keys;
                    for at in 1 .. cardinality(part.first_offsets) loop
                        if taken[cardinality(taken)].last_offset = part.first_offsets[at] - 1
                           and taken[cardinality(taken)].delivery_count = 1 then
                            taken[cardinality(taken)].last_offset := part.last_offsets[at];
                        else
                            taken := taken || row(part.first_offsets[at], part.last_offsets[at], 'acquired', 1,
                                in_member_number,
                                                  in_call_number, until, null, null, null, null, null)::msgtx.share_span;
                        end if;
                        most := most - (part.last_offsets[at] - part.first_offsets[at] + 1);
                    end loop;
                end loop;
            else
                first_offset := greatest(f.base_offset, next_offset);
                last_offset := least(f.last_offset, first_offset + most - 1);
                count := last_offset - first_offset + 1;
                if f.offset_deltas is not null then  -- what compaction has removed does not count
                    select count(*), min(o.record_offset), max(o.record_offset) into count, first_offset, last_offset
                    from (select f.base_offset + d as record_offset from unnest(f.offset_deltas) d
                          where f.base_offset + d >= next_offset order by d limit most) o;
                end if;
                next_offset := f.last_offset + 1;
                if f.visible and count > 0 then
                    if taken[cardinality(taken)].last_offset = first_offset - 1
                       and taken[cardinality(taken)].delivery_count = 1 then
                        taken[cardinality(taken)].last_offset := last_offset;
                    else
                        taken := taken || row(first_offset, last_offset, 'acquired', 1, in_member_number, in_call_number,
                            until,
                                              null, null, null, null, null)::msgtx.share_span;
                    end if;
                    most := most - count;
                    next_offset := case when most > 0 then next_offset else last_offset + 1 end;
                end if;
            end if;
            next_token := case g.isolation when 'read_committed' then 'stable ' else 'seen ' end || f.identity;
        end loop;
        if rows_found < rows_at_once then
            -- This is as far as it can be read. If an overdue transaction is why, which each row says, that is aborted
            -- (I12).
            exit when most <= 0 or ended >= expired_at_once or g.isolation = 'read_uncommitted'
                or f.blocked_overdue is not true;
            exit when not msgtx.expire_transaction(f.blocked_producer_id, f.blocked_epoch, f.blocked_number);
            ended := ended + 1;
        end if;
        rows_at_once := least(1000, 4 * rows_at_once, greatest(1, rows_left));
        bytes_left := bytes_left - coalesce((
            select sum(b.byte_size) from msgtx.record_batch b
            where b.partition_id = id and b.base_offset >= start and b.base_offset < next_offset), 0);
    end loop;

    left_over := taken;
    taken := '{}';
    for f in
        select r.* from msgtx.records_at(
            array_fill(id, array[cardinality(left_over)]), array(select s.first_offset from unnest(left_over) s),
            array(select s.last_offset from unnest(left_over) s), inline_bytes) r
    loop
        if f.place > place then  -- a span whose records are gone, since the log was compacted, has no row
            place := f.place;
            taken := taken || left_over[place];
        end if;
        record_count := f.record_count;
        byte_size := f.byte_size;
        first_offset := f.first_offset;
        last_offset := f.last_offset;
        delivery_count := left_over[place].delivery_count;
        max_timestamp := f.max_timestamp;
        -- Other records of the row may be the smaller ones.
        inline_bytes := inline_bytes - msgtx.bytes_of_columns(f.keys, f."values", f.header_keys, f.header_values);
        is_inline := inline_bytes >= 0;
        offsets := case when is_inline then f.offsets end;
        keys := case when is_inline then f.keys end;
        "values" := case when is_inline then f."values" end;
        timestamps := case when is_inline then f.timestamps end;
        header_counts := case when is_inline then f.header_counts end;
        header_keys := case when is_inline then f.header_keys end;
        header_values := case when is_inline then f.header_values end;
        return next;
    end loop;
    -- there may be more behind what is gone: the next call looks
    if taken = '{}' and (left_over <> '{}' or rows_left <= 0) then
        select 0, 0, null into record_count, byte_size, first_offset;
        return next;
    end if;

    if not is_repeated and (left_over <> '{}' or is_met or next_offset is distinct from state.next_offset
                            or next_due is distinct from state.next_due
                            or waiting_keys is distinct from state.waiting_keys) then
        insert into msgtx.share_state (group_id, partition_id, version, next_offset, next_token, spans, next_due,
            waiting_keys)
        values (g.group_id, id, coalesce(state.version, 0) + 1, next_offset, next_token, spans || taken, next_due,
            waiting_keys)
        on conflict do nothing;
        if not found then  -- a member that joined for the topic has begun with it since
            raise exception using errcode = '55P03', message = format('partition %s is new to the group: call again', id);
        end if;
    end if;
end $$;
