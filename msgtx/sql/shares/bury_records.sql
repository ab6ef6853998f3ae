-- bury_records(group, partition, spans, most, max_bytes) writes the records of these spans to the group's topic of dead
-- letters: key, value and headers, with further headers for its place, deliveries, reason and time. The letter's own time
-- is now, since retention counts from it. → how many records it wrote, of how many bytes, and the spans, or parts of them,
-- left for later: another session writes there, there is no such topic, or the group may not write dead letters.
--   most, max_bytes   limits: more is left for later; makes the topic if need be. Null: all; the caller, an answer, has
--                     locked the topic's partition
-- A record that is larger than the topic takes is stored all the same: it was taken once, and nobody is left to be told.
-- The caller holds the share partition's lock and writes its state in the same SQL transaction, so that each letter is
-- written once. Tries the partition's lock; a caller that waits for it has taken it before. Reads consumer_group,
-- share_group, partition, topic, record_batch, group_member. Writes record_batch through store_batches.
create function msgtx.bury_records(
    group_name text, in_partition_id int, dead msgtx.share_span[], most int, max_bytes bigint,
    out left_over msgtx.share_span[], out buried int, out bytes bigint
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    source record;
    target int;
    span msgtx.share_span;
    f record;
    place record;
    member text;
    letter msgtx.batch;
    at_header int;
    count int;
    ignored boolean;
begin
    left_over := dead;
    buried := 0;
    bytes := 0;
    if most is not null and not exists (  -- the caller that answers has checked the right
        select from msgtx.share_group s
        where s.group_id = (select c.group_id from msgtx.consumer_group c where c.name = group_name)
            and s.writes_dead_letters)
    then
        return;
    end if;
    if most is not null then
        ignored := msgtx.ensure_dead_letters(group_name) is not null;
    end if;
    target := msgtx.dead_letter_partition(group_name, in_partition_id);
    if target is null or not msgtx.try_lock_partition(target) then
        return;
    end if;
    select t.name, p.partition_index, t.timestamp_type into source
    from msgtx.partition p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where p.partition_id = in_partition_id;
    letter.partition_id := target;
    left_over := '{}';
    foreach span in array dead loop
        if buried >= most or bytes >= max_bytes then
            left_over := left_over || span;
            continue;
        end if;
        member := coalesce((select m.member_id from msgtx.group_member m where m.member_number = span.member_number), '');
        for f in
            select b.base_offset + coalesce(b.offset_deltas[i.at], i.at - 1) as record_offset, i.at,
                   b.keys[i.at] as key, b."values"[i.at] as value,
                       coalesce(b.timestamps[i.at], b.max_timestamp) as "timestamp",
                   b.header_counts, b.header_keys, b.header_values
            from msgtx.rows_between(in_partition_id, span.first_offset, span.last_offset) b
            cross join lateral generate_series(1, b.record_count) i(at)
            where b.base_offset + coalesce(b.offset_deltas[i.at], i.at - 1) between span.first_offset and span.last_offset
            order by b.base_offset, i.at
        loop
            if buried >= most or bytes >= max_bytes then
                span.first_offset := f.record_offset;
                left_over := left_over || span;
                exit;
            end if;
            count := coalesce(f.header_counts[f.at], 0);
            at_header := coalesce((select sum(c) from unnest(f.header_counts[:f.at - 1]) c), 0);
            f.header_keys := f.header_keys[at_header + 1:at_header + count] || msgtx.dead_letter_headers();
            f.header_values := f.header_values[at_header + 1:at_header + count] || array[
                convert_to(group_name, 'UTF8'), convert_to(source.name, 'UTF8'),
                    convert_to(source.partition_index::text, 'UTF8'),
                convert_to(f.record_offset::text, 'UTF8'), convert_to(span.delivery_count::text, 'UTF8'),
                convert_to(case when span.status = 'rejected' then coalesce(span.reason, 'rejected')
                           else 'delivery limit' || coalesce(': ' || span.reason, '') end, 'UTF8'),
                convert_to(member, 'UTF8'),
                convert_to(to_char(msgtx.clock() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'UTF8'),
                convert_to(f."timestamp"::text, 'UTF8')];
            letter.keys := case when f.key is not null then array[f.key] end;
            letter."values" := array[f.value];
            letter.header_counts := array[cardinality(f.header_keys)];
            letter.header_keys := f.header_keys;
            letter.header_values := f.header_values;
            count := msgtx.batch_bytes(letter.keys, letter."values", letter.header_keys, letter.header_values);
            place := msgtx.usual_place(target, null, null, null, count);
            ignored := msgtx.store_batches(
                array[letter], array[place.base_offset], array[place.appended_at], '{true}', '{}');
            buried := buried + 1;
            bytes := bytes + count;
        end loop;
    end loop;
    if buried > 0 then
        ignored := msgtx.wake_readers(array[target]);
    end if;
end $$;
