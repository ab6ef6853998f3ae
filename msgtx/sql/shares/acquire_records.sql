-- acquire_records(group, members, calls, partitions, …) gives members of a share group records that nobody else has.
-- A partition is the usual case (acquire_usually), or one member acquires by the general rules (acquire_generally).
--   accepted_firsts  what each accepts, to last: all records of one acquisition, of the first partition; -1: none
--   answers, …       of one member (apply_answers). If any is refused, its rows have an error, and nothing is acquired
--   is_again         the call was made before. If it was done, the member gets the same records again
--   inline_bytes     of records come at once; behind them, keys, … are null, all of them (read_records). null: of all
--   a row for each piece of a row of the log that asker, a place in members, has acquired; offsets: null if each is a
--   record. If there is nothing, asker is 0 for: perhaps at once, else -1
--   no row: it is not usual for all of several members, and nothing was done; or one member's call is late
-- Locks the first share partition and those that are answered for; tries the others. Reads consumer_group, share_group,
-- group_member, group_heartbeat. Writes share_call; share_state and more by acquire_usually, acquire_generally,
-- apply_answers. Flushed if it wrote dead letters; what is answered for is flushed by the caller (flush_log).
-- long: one loop over partitions, whose steps share what is left to give
-- right: consume
-- commit: asynchronous
-- null: asker, partition_id, first_offset, last_offset, delivery_count, lock_ms, max_timestamp, offsets, keys, values
-- null: timestamps, header_counts, header_keys, header_values, header_values[], keys[], values[]
-- plan: look-ups, nested loops, in order
create function msgtx.acquire_records(
    group_name text, member_numbers bigint[], call_numbers bigint[], partition_ids int[], mosts int[], max_bytes bigint,
    accepted_firsts bigint[], accepted_lasts bigint[], answered_partitions int[] default '{}',
    first_offsets bigint[] default '{}', last_offsets bigint[] default '{}', answers text[] default '{}',
    reasons text[] default '{}', delays_ms int[] default '{}', is_again boolean default false,
    inline_bytes bigint default null)
returns table (
    error text, asker int, partition_id int, first_offset bigint, last_offset bigint, delivery_count int, lock_ms int,
    max_timestamp bigint, offsets bigint[], keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    partitions_at_once constant int := 256;  -- that are locked
    letters int := 500;  -- dead letters that a call writes; their bytes count in max_bytes
    moment constant timestamptz := msgtx.clock();
    members constant int := cardinality(member_numbers);
    max_records constant int := mosts[1];
    accepts boolean := -1 <> any(accepted_firsts);  -- and the usual case of that has not been looked at yet
    is_answering boolean := accepts or answers <> '{}';  -- no answer has been applied yet
    is_answered boolean := false;
    is_refused boolean := false;
    is_locked boolean;
    is_usual boolean;
    is_repeated boolean := false;
    is_alone boolean := false;
    has_passed boolean := false;
    has_some boolean := false;
    again boolean;
    home record;
    g msgtx.share_group;
    id int;
    place int := 1;
    records int;
    bytes bigint;
    had int[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    inline_bytes := coalesce(inline_bytes, 9223372036854775807);
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', partition_ids || answered_partitions)
        and msgtx.require_names('group', array[group_name]);
    select s as settings, asked.living, asked.answered_call, asked.is_answered into home
    from (select c.group_id from msgtx.consumer_group c where c.name = group_name limit 1) c
    cross join lateral (select s.* from msgtx.share_group s where s.group_id = c.group_id limit 1) s
    cross join lateral (
        select count(*) as living, max(answered.call_number) as answered_call,
               coalesce(bool_or(u.call_number <= answered.call_number), false) as is_answered
        from unnest(member_numbers, call_numbers) u(member_number, call_number)
        cross join lateral msgtx.session_of(u.member_number, moment) s
        left join lateral (
            select c.call_number from msgtx.share_call c where c.member_number = u.member_number
            order by c.call_number desc limit 1) answered on true
        where s.group_id = c.group_id and not s.is_over) asked;
    if members > 1 and (home.living is distinct from members or home.is_answered) then
        return;
    elsif home.living is distinct from members then
        g := msgtx.share_group_of(group_name, member_numbers[1]);
        raise exception using errcode = 'MX025', message = format(
            'share group %s: the session of member %s is over', group_name, member_numbers[1]),
            detail = jsonb_build_object('group', group_name);
    elsif home.is_answered and is_answering then
        if call_numbers[1] < home.answered_call then
            return;  -- it comes late, and has no caller any more
        end if;
        is_answering := false;
        accepts := false;
    end if;
    g := home.settings;
    loop
        if is_answering and not accepts then
            for error, partition_id, first_offset, last_offset in
                select r.error, r.partition_id, r.first_offset, r.last_offset from msgtx.apply_answers_once(
                    array_fill(group_name, array[cardinality(answers)]),
                    array_fill(member_numbers[1], array[cardinality(answers)]),
                    answered_partitions, first_offsets, last_offsets, answers, reasons, delays_ms, call_numbers[1]) r
            loop
                is_refused := true;
                return next;
            end loop;
            if is_refused then
                return;
            end if;
            is_answering := false;
            is_answered := true;
        end if;
        exit when is_alone or not accepts and not is_repeated and (
            0 = all(mosts) or max_bytes <= 0 or has_some and members > 1);
        if place = 2 and not is_repeated then
            partition_ids := partition_ids[:1] || array(
                select p from msgtx.partitions_to_acquire(g, partition_ids[2:], moment, partitions_at_once - 1) p);
        end if;
        exit when place > least(cardinality(partition_ids), partitions_at_once);
        id := partition_ids[place];
        is_locked := true;
        if place = 1 and not is_answered then
            ignored := msgtx.lock_share_partition(g.group_id, id);
        else
            is_locked := msgtx.try_lock_share_partition(g.group_id, id);
        end if;
        if place = 1 and is_again then  -- behind a lock of the first try: if it was done, that is over
            had := array(
                select p from unnest(partition_ids) p
                cross join lateral msgtx.share_state_of(g.group_id, p) newest
                where exists (select from unnest(newest.spans) u
                              where u.call_number = call_numbers[1] and u.member_number = member_numbers[1]));
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
        place := place + 1;
        if not is_locked then
            has_passed := true;
            continue;
        end if;
        partition_id := id;
        if is_repeated then
            is_usual := false;
        elsif members > 1 then
            return query
            select null, u.asker, id, u.first_offset, u.last_offset, 1, g.record_lock_duration_ms, u.max_timestamp,
                   null::bigint[], u.keys, u."values", u.timestamps, u.header_counts, u.header_keys, u.header_values
            from msgtx.acquire_usually(
                g, id, member_numbers, call_numbers, mosts, max_bytes, case when accepts then accepted_firsts end,
                accepted_lasts, inline_bytes) u;
            get diagnostics records = row_count;
            is_usual := records > 0;
            has_some := records > 1;
        else
            is_usual := false;
            for asker, bytes, first_offset, last_offset, max_timestamp, keys, "values", timestamps, header_counts,
                header_keys, header_values in
                select u.* from msgtx.acquire_usually(
                    g, id, member_numbers, call_numbers, mosts, max_bytes, case when accepts then accepted_firsts end,
                    accepted_lasts, inline_bytes) u
            loop
                is_usual := true;
                exit when asker = 0;
                has_some := true;
                delivery_count := 1;
                lock_ms := g.record_lock_duration_ms;
                return next;
                mosts[1] := mosts[1] - (last_offset - first_offset + 1);
                if mosts[1] > 0 then
                    max_bytes := max_bytes - bytes;
                    inline_bytes := coalesce(
                        inline_bytes - msgtx.batch_bytes(keys, "values", header_keys, header_values), 0);
                end if;
            end loop;
        end if;
        is_answered := is_answered or is_usual and accepts;
        if is_usual then
            is_answering := false;
            accepts := false;
        elsif members > 1 then
            if place = 2 then
                return;
            end if;
            has_passed := true;  -- each looks at it by itself
        elsif accepts then
            accepts := false;
            place := 1;  -- once more, by the general rules
        else
            g := msgtx.share_group_of(group_name, member_numbers[1]);  -- behind the lock: it may be gone
            asker := 1;
            for again, records, bytes, first_offset, last_offset, delivery_count, max_timestamp, offsets, keys, "values",
                timestamps, header_counts, header_keys, header_values in
                select r.* from msgtx.acquire_generally(
                    group_name, g, member_numbers[1], call_numbers[1], id, mosts[1], max_records, max_bytes, is_repeated,
                    letters, inline_bytes) r
            loop
                max_bytes := max_bytes - bytes;
                if first_offset is null then
                    letters := letters - records;
                    has_passed := true;
                    is_alone := records = 0;  -- it looked at as much as it may, or met what is gone: the next call goes on
                    continue;
                end if;
                is_alone := delivery_count >= g.delivery_count_limit;
                lock_ms := g.record_lock_duration_ms;
                has_some := true;
                return next;
                mosts[1] := mosts[1] - records;
                inline_bytes := coalesce(
                    inline_bytes - msgtx.batch_bytes(keys, "values", header_keys, header_values), 0);
                is_repeated := again;
            end loop;
            offsets := null;
        end if;
    end loop;
    if is_answered and members = 1 then
        insert into msgtx.share_call (member_number, call_number) values (member_numbers[1], call_numbers[1])
        on conflict do nothing;
    elsif is_answered then
        insert into msgtx.share_call (member_number, call_number)
        select u.member_number, u.call_number
        from unnest(member_numbers, call_numbers, accepted_firsts) u(member_number, call_number, accepted_first)
        where u.accepted_first >= 0;
    end if;
    if not has_some then
        asker := case when has_passed then 0 else -1 end;
        partition_id := null;
        return next;
    end if;
end $$;
