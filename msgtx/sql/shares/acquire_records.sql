-- acquire_records(group, member, partitions, …) gives a member records of these partitions that nobody else has, for as long
-- as the group's lock lasts. A partition whose lock another member holds is passed.
--   one row for each piece of a row of the log that has records: all offsets from first to last are acquired; offsets is
--   null where each of them is a record
--   keys, values, …  null, all of them, of what is behind 16 kB: read_records reads it. A member that is stopped while it reads a
--                   large answer would keep the locks
--   one row without a partition: there was nothing, but a partition was passed, or dead letters were written: there may be more
--   in_call_number  counted by the member: the same one again has the same answer
--   is_again        the call has been made before, with the same partitions: perhaps it was done, and its answer was lost. If so, it gets
--                   the same records again and nothing else, whatever max_records and max_bytes are
--   answered_partitions, …  what the member answers for first (apply_answers), in the same SQL transaction: nothing is
--   acquired if any of it is refused, which is a row of its own each, with an error. The number is then that of both, see
--   acknowledge_records
-- Partition by partition it is the usual case (acquire_usually), or the general rules apply (acquire_generally): of the first one, and
-- of as many others as may have something (partitions_to_acquire), until there are max_records or max_bytes, but one record at least. What
-- has been acquired is one row of share_state, however many records it is. Waits for the lock of share partitions that are answered
-- for, and, if it holds no other, for that of a partition that is asked for alone; tries those of the others. Reads
-- consumer_group, share_group, group_member, group_heartbeat. Writes share_call; through acquire_usually, acquire_generally
-- and apply_answers share_state and what these say. Flushed if it wrote dead letters: who has acquired what need not outlast a
-- crash, and what is answered for later is flushed with it. What is answered for is flushed, unless the caller does it
-- (flush_log).
-- right: consume
-- commit: asynchronous
-- null: partition_id, first_offset, last_offset, delivery_count, lock_ms, max_timestamp, offsets, keys, values
-- null: timestamps, header_counts, header_keys, header_values, header_values[], keys[], values[]
-- plan: look-ups, nested loops, in order
create function msgtx.acquire_records(
    group_name text, in_member_number bigint, in_call_number bigint, partition_ids int[], max_records int, max_bytes bigint,
    answered_partitions int[] default '{}', first_offsets bigint[] default '{}', last_offsets bigint[] default '{}',
    answers text[] default '{}', reasons text[] default '{}', delays_ms int[] default '{}', flushes boolean default true,
    is_again boolean default false)
returns table (
    error text, partition_id int, first_offset bigint, last_offset bigint, delivery_count int, lock_ms int, max_timestamp bigint,
    offsets bigint[], keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    partitions_at_once constant int := 256;  -- that are locked
    inline_bytes bigint := 16384;  -- of records that an answer has: this much is on its way before the locks are gone, read or not
    letters int := 500;  -- dead letters that a call writes; their bytes count in max_bytes
    moment constant timestamptz := msgtx.clock();
    home record;
    g msgtx.share_group;
    f record;
    id int;
    records int;
    bytes bigint;
    room int := max_records;
    accepts boolean := false;  -- one range, and is to have records of the same partition: usually
    is_first boolean := answers <> '{}';  -- these answers have not been applied yet
    is_refused boolean := false;
    is_usual boolean;
    again boolean;
    is_locked boolean;
    had int[];
    is_repeated boolean := false;
    is_alone boolean := false;
    has_passed boolean := false;
    accepted_first bigint;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids || answered_partitions)
            and msgtx.require_names('group', array[group_name]);
    end if;
    select s as settings, msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment) as is_over,
           (select c.call_number from msgtx.share_call c where c.member_number = in_member_number
            order by c.call_number desc limit 1) as answered_call
    into home
    from (select c.group_id from msgtx.consumer_group c where c.name = group_name limit 1) c
    cross join lateral (select s.* from msgtx.share_group s where s.group_id = c.group_id limit 1) s
    cross join lateral (
        select m.session_timeout_ms from msgtx.group_member m
        where m.member_number = in_member_number and m.group_id = c.group_id limit 1) m
    cross join lateral (
        select h.heartbeat_at from msgtx.group_heartbeat h where h.member_number = in_member_number
        order by h.heartbeat_number desc limit 1) newest;
    if home.is_over is not false then
        g := msgtx.share_group_of(group_name, in_member_number);
        raise exception using errcode = 'MX025', message = format(
            'share group %s: the session of member %s is over', group_name, in_member_number),
            detail = jsonb_build_object('group', group_name);
    end if;
    if is_first and in_call_number < home.answered_call then
        return;  -- it comes late, and has no caller any more
    end if;
    g := home.settings;
    is_first := is_first and in_call_number is distinct from home.answered_call;
    if is_first then
        accepts := cardinality(answers) = 1 and answers[1] = 'accept' and answered_partitions[1] = partition_ids[1];
        if not accepts then
            for error, partition_id, first_offset, last_offset in
                select r.error, r.partition_id, r.first_offset, r.last_offset from msgtx.apply_answers_once(
                    array_fill(group_name, array[cardinality(answers)]), array_fill(in_member_number, array[cardinality(answers)]),
                    answered_partitions, first_offsets, last_offsets, answers, reasons, delays_ms, in_call_number) r
            loop
                is_refused := true;
                return next;
            end loop;
        end if;
    end if;
    for place in 1 .. partitions_at_once loop
        exit when is_alone or is_refused or not accepts and not is_repeated and (room <= 0 or max_bytes <= 0);
        if place = 2 and not is_repeated then
            partition_ids := partition_ids[:1] || array(
                select p from msgtx.partitions_to_acquire(g, partition_ids[2:], moment, partitions_at_once - 1) p);
        end if;
        exit when place > cardinality(partition_ids);
        id := partition_ids[place];
        is_locked := true;
        if accepts or place = 1 and answers = '{}' then
            ignored := msgtx.lock_share_partition(g.group_id, id);
        else
            is_locked := msgtx.try_lock_share_partition(g.group_id, id);
        end if;
        if place = 1 and is_again then  -- behind a lock of the first try: if it was done, that is over
            had := array(
                select p from unnest(partition_ids) p
                cross join lateral (
                    select s.spans from msgtx.share_state s
                    where s.group_id = g.group_id and s.partition_id = p order by s.version desc limit 1) newest
                where exists (select from unnest(newest.spans) u
                              where u.call_number = in_call_number and u.member_number = in_member_number));
            is_repeated := had <> '{}';
            if is_repeated then
                partition_ids := had;
                id := had[1];
                is_locked := msgtx.try_lock_share_partition(g.group_id, id);
            end if;
        end if;
        if is_repeated and not is_locked then
            raise exception using errcode = '55P03', message = format(
                'share partition %s, where this call had records, is locked: call again', id);
        end if;
        if not is_locked then
            has_passed := true;
            continue;
        end if;
        partition_id := id;
        is_usual := false;
        if not is_repeated then
            for f in
                select u.* from msgtx.acquire_usually(
                    g, id, array[in_member_number], array[in_call_number], array[room], max_bytes,
                    array[case when accepts then first_offsets[1] else -1 end], array[case when accepts then last_offsets[1] else -1 end],
                    inline_bytes) u
            loop
                is_usual := true;
                accepts := false;
                exit when f.asker = 0;
                first_offset := f.first_offset;
                last_offset := f.last_offset;
                delivery_count := 1;
                lock_ms := g.record_lock_duration_ms;
                offsets := null;
                max_timestamp := f.max_timestamp;
                keys := f.keys;
                "values" := f."values";
                timestamps := f.timestamps;
                header_counts := f.header_counts;
                header_keys := f.header_keys;
                header_values := f.header_values;
                return next;
                room := room - (last_offset - first_offset + 1)::int;
                max_bytes := max_bytes - f.byte_size;
                inline_bytes := coalesce(inline_bytes - msgtx.bytes_of_columns(keys, "values", header_keys, header_values), 0);
            end loop;
        end if;
        continue when is_usual;

        accepted_first := null;
        if accepts then
            accepts := false;
            -- The state that has what is acquired is without it, too.
            accepted_first := (
                select u.first_offset
                from (select s.spans from msgtx.share_state s where s.group_id = g.group_id and s.partition_id = id
                      order by s.version desc limit 1) newest
                cross join lateral unnest(newest.spans) u
                where u.first_offset = first_offsets[1] and u.last_offset = last_offsets[1] and u.status = 'acquired'
                  and u.member_number = in_member_number
                  and msgtx.is_running(u.locked_until, g.longest_lock_ms, msgtx.clock())
                  and (g.ordering = 'none' or not exists (  -- as in apply_answers
                      select from unnest(newest.spans) e
                      where e.first_offset < u.first_offset and (
                          e.status <> 'acquired'
                          or not msgtx.is_running(e.locked_until, g.longest_lock_ms, msgtx.clock())))));
            if accepted_first is null or not exists (select from msgtx.partition p where p.partition_id = id) then
                for error, partition_id, first_offset, last_offset in
                    select r.error, r.partition_id, r.first_offset, r.last_offset from msgtx.apply_answers_once(
                        array[group_name], array[in_member_number], answered_partitions, first_offsets, last_offsets, answers,
                        reasons, delays_ms, in_call_number) r
                loop
                    is_refused := true;
                    return next;
                end loop;
                exit when is_refused;
                accepted_first := null;
                partition_id := id;
            end if;
        end if;
        g := msgtx.share_group_of(group_name, in_member_number);  -- behind the lock: it may be gone
        for again, records, bytes, first_offset, last_offset, delivery_count, max_timestamp, offsets, keys, "values", timestamps,
            header_counts, header_keys, header_values in
            select r.* from msgtx.acquire_generally(
                group_name, g, in_member_number, in_call_number, id, room, max_records, max_bytes, accepted_first, is_repeated,
                letters, inline_bytes) r
        loop
            max_bytes := max_bytes - bytes;
            if first_offset is null then
                letters := letters - records;
                has_passed := true;
                is_alone := records = 0;  -- it has looked at as much as a call may, or met what is gone: the next call goes on
                continue;
            end if;
            is_alone := delivery_count >= g.delivery_count_limit;
            lock_ms := g.record_lock_duration_ms;
            return next;
            room := room - records;
            inline_bytes := coalesce(inline_bytes - msgtx.bytes_of_columns(keys, "values", header_keys, header_values), 0);
            is_repeated := again;
        end loop;
    end loop;
    if is_refused then
        return;
    end if;
    if is_first then
        insert into msgtx.share_call (member_number, call_number) values (in_member_number, in_call_number)
        on conflict do nothing;
        if flushes then
            ignored := msgtx.flush_at_commit();
        end if;
    end if;
    if has_passed and room = max_records then
        partition_id := null;
        return next;
    end if;
end $$;
