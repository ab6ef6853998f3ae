-- take(topic, group, max_records, …) gives this SQL transaction the next committed records of a topic for a consumer group,
-- and moves the group's offsets with its COMMIT (I10): after a rollback, or the end of its session, others get the records.
-- The SQL transaction is the member: it has the partitions that it takes from to its end; of 16 neighbours, those with the
-- most records first.
--   max_bytes           of keys and values; the first record may be larger
--   auto_offset_reset   where a group begins with a topic, and goes on when its offset is not in the log (any more):
--                       earliest, latest, none (NoOffset, OffsetOutOfRange)
--   no row              there is nothing; others have the partitions; or the group is made or changed now
-- A consumer that joins waits for this transaction. Tries locks of the group (group_to_take_for) and of its partitions, and
-- never waits; 55P03: a compaction came in between, call again. Reads topic, partition, record_batch, group_offset. Writes
-- consumer_group, group_offset, through insert_offsets; transaction_decision through expire_holders. Flushed.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.take(
    topic text, group_name text, max_records bigint default 100, max_bytes bigint default 1048576,
    auto_offset_reset text default 'earliest'
) returns setof msgtx.taken_record language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    rounds constant int := 20;  -- through rows of aborted transactions
    ignored constant boolean := msgtx.refuse_stale_snapshot() and (
        msgtx.acts_for_owner() or msgtx.require_right_on_topic('consume', topic)
        and msgtx.require_names('group', array[group_name]));
    renewed_before constant timestamptz :=
        msgtx.clock() - msgtx.setting_value('offsets_retention_ms') / 2 * interval '1 ms';
    found_topic constant int := msgtx.topic_to_read(
        'take', topic, group_name, max_records, max_bytes, auto_offset_reset);
    found_group constant int := msgtx.group_to_take_for(group_name);
    -- A look at a partition takes 7 µs: of a topic with many, as many are looked at as are needed.
    part_size constant int := 16;
    last_index constant int := (select max(p.partition_index) from msgtx.partition p where p.topic_id = found_topic);
    parts constant int := 1 + last_index / part_size;
    first_part constant int := floor(random() * parts);
    has_some boolean := false;
    held_back int[] := '{}';
    pending int[] := '{}';
    place record;
    since record;
    step record;
    taken bigint;
    start bigint;
begin
    if found_group is null or auto_offset_reset <> 'earliest'
        and msgtx.begins_now(found_topic, found_group, topic, group_name, auto_offset_reset) then
        return;
    end if;
    for place in
        select a.* from generate_series(0, parts - 1) turn
        cross join lateral (select (first_part + turn) % parts * part_size) part(begins)
        cross join lateral (
            select p.partition_id, p.partition_index, p.log_start_offset, e.log_end,
                   o.committed_at < renewed_before as is_old
            from msgtx.partition p
            left join lateral msgtx.last_row_of(p.partition_id) tail on true
            cross join lateral (select greatest(tail.last_offset + 1, p.log_start_offset) as log_end) e
            left join lateral msgtx.newest_offset_of(found_group, p.partition_id) o on true
            where p.topic_id = found_topic and p.partition_index between part.begins and part.begins + part_size - 1
              and (coalesce(o.committed_offset, p.log_start_offset) <> e.log_end or o.committed_at < renewed_before)
            order by e.log_end - greatest(o.committed_offset, p.log_start_offset) desc, p.partition_index) a
    loop
        exit when max_records <= 0 or max_bytes <= 0;
        continue when not msgtx.try_lock_group_partition(found_group, place.partition_id);
        -- Behind the lock: the last holder may have moved the offset.
        select c.committed_offset, c.pending into since
        from msgtx.decided_offset_of(found_group, place.partition_id) c;
        if since.pending then
            pending := pending || place.partition_id;
            continue;
        end if;
        start := since.committed_offset;
        if start between place.log_start_offset and place.log_end is not true then
            start := msgtx.offset_to_take_from(
                topic, place.partition_index, place.partition_id, group_name, start, auto_offset_reset);
        end if;
        for round in 1 .. rounds loop
            select r.* into step
            from msgtx.rows_to_take(place.partition_id, start, max_records, max_bytes, has_some) r;
            start := step.next_offset;
            exit when not step.has_more;
        end loop;
        return query
        select topic, place.partition_index, r."offset", r."timestamp", r.key, r.value, r.headers
        from unnest(step.base_offsets, step.record_counts, step.befores, step.counts)
            u(base_offset, record_count, before, count)
        cross join lateral (
            select b.* from msgtx.record_batch b
            where b.partition_id = place.partition_id and b.base_offset = u.base_offset
              and b.record_count = u.record_count limit 1) b
        cross join lateral msgtx.unpack_records(
            b.base_offset, b.offset_deltas, b.max_timestamp, b.keys, b."values", b.timestamps, b.header_counts,
            b.header_keys, b.header_values, u.before, u.count) r;
        get diagnostics taken = row_count;
        if taken <> (select coalesce(sum(c), 0) from unnest(step.counts) c) then
            raise exception using errcode = '55P03', message = format(
                '%s-%s was compacted or shortened meanwhile: call again', topic, place.partition_index);
        end if;
        has_some := has_some or taken > 0;
        max_records := max_records - taken;
        max_bytes := max_bytes - coalesce(step.bytes, 0);
        if step.held_back then
            held_back := held_back || place.partition_id;
        end if;
        if start <> coalesce(since.committed_offset, place.log_start_offset) or place.is_old then
            perform msgtx.insert_offsets(
                array[group_name], array[place.partition_id], array[start], '{}', '{}', '{}', null, null, null);
            perform msgtx.flush_at_commit();
        end if;
    end loop;
    if not has_some then  -- else the decisions would wait for the COMMIT of the caller's work
        perform msgtx.expire_holders(held_back), msgtx.expire_holders(pending, group_name);
    end if;
end $$;
