-- redrive_dead_letters(group, index, upto, most, skip_missing) sends a share group's dead letters back to the topics that
-- they came from, from one partition of its topic of dead letters: those from the group's position there to offset
-- upto. One SQL transaction sends them and moves the group on, so each is sent once. Key, value and headers are those
-- of the dead record; the time is now, and header msgtx.timestamp says the first one. Other records than dead letters
-- of this group are skipped. At most 1,000 letters, 8 MiB and 256 target partitions in a call.
--   in_upto, upto     null: the last stable offset, behind what is overdue (I12); in the answer: there is no such partition
--   skip_missing      pass over letters whose topic is gone, instead of the refusal
--   error, detail     UnknownTopicOrPartition: the topic of the next letter is gone
--   is_over           nothing is left below upto. Another call may have been faster: then nothing was done, and more is left
-- Tries producers' locks. Locks partitions, then the share partition of the dead letters (exclusive, each ascending). Reads
-- consumer_group, share_group, partition, topic, record_batch and, through fetch_batches, the transaction tables. Writes
-- share_state; record_batch through append_or_raise. Flushed.
-- long: one pass over the letters collects what is sent
-- right: consume
-- null: upto
-- plan: look-ups
create function msgtx.redrive_dead_letters(
    group_name text, in_index int, in_upto bigint, most int, skip_missing boolean,
    out error text, out detail text, out upto bigint, out sent int, out skipped int, out is_over boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_variable
declare
    records_at_once constant int := 1000;
    bytes_at_once constant bigint := 8388608;
    partitions_at_once constant int := 256;
    added constant text[] := msgtx.dead_letter_headers();
    wanted_group constant bytea := convert_to(group_name, 'UTF8');
    found_id int;
    letters_topic text;
    letters_id int;
    next_offset bigint;
    state record;
    row_of_log record;
    start bigint;
    here bigint;
    header_at int;
    added_at int;
    own_headers int;
    source text;
    source_index int;
    known_source text;
    known_index int;
    target int;
    targets int[] := '{}';
    partition_ids int[] := '{}';
    keys bytea[] := '{}';
    record_values bytea[] := '{}';
    header_counts int[] := '{}';
    header_keys text[] := '{}';
    header_values bytea[] := '{}';
    now_ms bigint;
    batches msgtx.batch[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    sent := 0;
    skipped := 0;
    is_over := true;
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    found_id := (
        select s.group_id from msgtx.share_group s
        where s.group_id = (select c.group_id from msgtx.consumer_group c where c.name = group_name));
    if found_id is null then
        raise exception using errcode = 'MX069', message = format('there is no share group %s', group_name),
            detail = jsonb_build_object('group', group_name);
    end if;
    letters_topic := msgtx.dead_letter_topic_of(group_name);
    letters_id := (
        select p.partition_id from msgtx.topic t
        cross join lateral (
            select p.partition_id from msgtx.partition p where p.topic_id = t.topic_id and p.partition_index = in_index) p
        where t.name = letters_topic);
    ignored := msgtx.acts_for_owner() or msgtx.require_right_on_topic('consume', letters_topic);
    if letters_id is null then
        return;
    end if;
    if in_upto is null then
        perform from msgtx.expire_holders(array[letters_id]);
    end if;
    upto := coalesce(in_upto, msgtx.last_stable_offset(letters_id));
    select s.* into state from msgtx.share_state_of(found_id, letters_id) s;
    start := greatest(state.next_offset, (
        select p.log_start_offset from msgtx.partition p where p.partition_id = letters_id));
    next_offset := start;
    <<letters>>
    for row_of_log in
        select b.* from msgtx.fetch_batches(
            array[letters_id], array[start], array[null::text], 'read_committed', bytes_at_once, records_at_once) b
    loop
        exit when row_of_log.base_offset is null or row_of_log.base_offset >= upto;
        header_at := 0;
        for at in 1 .. case when row_of_log.visible then cardinality(row_of_log."values") else 0 end loop
            here := row_of_log.base_offset + coalesce(row_of_log.offset_deltas[at], at - 1);
            own_headers := coalesce(row_of_log.header_counts[at], 0) - cardinality(added);
            header_at := header_at + coalesce(row_of_log.header_counts[at], 0);
            added_at := header_at - cardinality(added);
            continue when here < start or here >= upto;
            source := msgtx.header_text(row_of_log.header_values[added_at + 2], 249);
            if own_headers >= 0
               and row_of_log.header_keys[added_at + 1:header_at] = added
               and row_of_log.header_values[added_at + 1] = wanted_group
               and msgtx.is_topic_name(source)
               and msgtx.header_text(row_of_log.header_values[added_at + 3], 9) ~ '^[0-9]{1,9}$'
               and msgtx.header_text(row_of_log.header_values[header_at], 15) ~ '^[0-9]{1,15}$'
            then
                next_offset := here;
                exit letters when sent >= least(most, records_at_once);
                source_index := msgtx.header_text(row_of_log.header_values[added_at + 3], 9)::int;
                if (known_source, known_index) is distinct from (source, source_index) then
                    -- A topic that was made anew may have fewer partitions.
                    target := (
                        select p.partition_id from msgtx.topic t
                        cross join lateral (
                            select p.partition_id, p.partition_index, count(*) over () as partitions
                            from msgtx.partition p where p.topic_id = t.topic_id) p
                        where t.name = source and p.partition_index = source_index % p.partitions);
                    known_source := source;
                    known_index := source_index;
                end if;
                if target is null and not skip_missing then
                    if sent + skipped = 0 then
                        error := 'UnknownTopicOrPartition';
                        detail := format(
                            'the dead letter %s-%s offset %s came from topic %s, which is gone: create it, or skip such'
                            ' letters', letters_topic, in_index, here, source);
                        return;
                    end if;
                    exit letters;
                end if;
                if target is null then
                    skipped := skipped + 1;
                else
                    if target <> all (targets) then
                        exit letters when cardinality(targets) >= partitions_at_once;
                        targets := targets || target;
                    end if;
                    sent := sent + 1;
                    partition_ids[sent] := target;
                    keys[sent] := row_of_log.keys[at];
                    record_values[sent] := row_of_log."values"[at];
                    header_counts[sent] := own_headers;
                    header_keys := header_keys || row_of_log.header_keys[added_at - own_headers + 1:added_at];
                    header_values := header_values || row_of_log.header_values[added_at - own_headers + 1:added_at];
                    if array_position(row_of_log.header_keys[added_at - own_headers + 1:added_at], 'msgtx.timestamp') is null
                        then
                        header_counts[sent] := own_headers + 1;
                        header_keys := header_keys || text 'msgtx.timestamp';
                        header_values := header_values || row_of_log.header_values[header_at];
                    end if;
                end if;
            end if;
        end loop;
        next_offset := greatest(next_offset, least(row_of_log.last_offset + 1, upto));
    end loop;
    if next_offset = start then
        return;
    end if;

    if sent > 0 then
        now_ms := floor(extract(epoch from msgtx.clock()) * 1000);
        batches := msgtx.batches_of_records(
            array_fill(true, array[sent]), partition_ids, array_fill(now_ms, array[sent]), keys, record_values,
                header_counts, header_keys, header_values);
        ignored := msgtx.lock_partitions(batches);
    end if;
    ignored := msgtx.lock_share_partition(found_id, letters_id);
    if state.version is distinct from (select s.version from msgtx.share_state_of(found_id, letters_id) s) then
        sent := 0;
        skipped := 0;
        is_over := false;
        return;
    end if;
    if sent > 0 then
        ignored := msgtx.append_or_raise(batches);
    end if;
    insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans, next_due, waiting_keys)
    values (found_id, letters_id, coalesce(state.version, 0) + 1, next_offset, coalesce(state.spans, '{}'), state.next_due,
            coalesce(state.waiting_keys, '{}'))
    on conflict do nothing;
    if not found then  -- a member has begun to read it in between, before it became the topic of dead letters
        raise exception using errcode = '55P03', message = format('%s is new to group %s: call again', letters_topic,
            group_name);
    end if;
    ignored := msgtx.flush_at_commit();
    is_over := next_offset >= upto;
end $$;
