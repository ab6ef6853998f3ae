-- append_once(partition_ids, dedup_keys, …) stores each record whose key its topic does not hold within dedup_window_ms
-- (counted from the first one's append), outside transactions; one answer per record, in their order. For a key that is held
-- the answer is the place and time of the first record, duplicate = true, also if the content differs or retention has
-- removed the first. A key that comes twice in a call is answered as its first. A refused record keeps no key, so it
-- may come again, corrected; records of one partition are refused together, as a batch is. Every answer is flushed.
--   header_counts   of each record, null: there are no headers
--   wake            wake waiting consumers at COMMIT
-- Locks rows of dedup_key (ascending by topic and key, also those that are held), and only then, through append, partitions
-- (ascending): first in the order of locks, for a SQL transaction of its own. Inserts of one key wait for each other there.
-- Reads partition, record_batch. Writes dedup_key, and through append record_batch.
-- right: produce
-- null: partition_index, record_offset, record_timestamp
-- plan: look-ups
create function msgtx.append_once(
    partition_ids int[], dedup_keys text[], timestamps bigint[], record_keys bytea[], record_values bytea[],
    header_counts int[] default null, header_keys text[] default null, header_values bytea[] default null,
    wake boolean default true)
returns table (
    error text, detail text, partition_index int, record_offset bigint, record_timestamp bigint, duplicate boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    oldest timestamptz;
    topic_ids int[];  -- of each record; 0: its partition does not exist
    taken boolean[];  -- whether the record took its key
    batches msgtx.batch[];  -- of what took its key
    errors text[] := '{}';
    details text[] := '{}';
    base_offsets bigint[] := '{}';
    found_at bigint;
    answer record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.check_records(
        partition_ids, dedup_keys, timestamps, record_keys, record_values, header_counts, header_keys, header_values);
    topic_ids := array(
        select coalesce((select p.topic_id from msgtx.partition p where p.partition_id = asked.partition_id), 0)
        from unnest(partition_ids) with ordinality asked(partition_id, ordinal) order by asked.ordinal);
    -- After the look: a topic that is created in between was either not seen by the look, or is seen here.
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{produce}', partition_ids);
    ignored := msgtx.flush_at_commit();

    -- If another call holds a key, this waits here for its COMMIT. Until the offset is known, the row holds the
    -- record's place in this call, negative. A row within the window is locked only: no sweep takes it before it is
    -- read below.
    taken := array_fill(false, array[cardinality(partition_ids)]);
    oldest := msgtx.clock() - msgtx.setting_value('dedup_window_ms') * interval '1 ms';
    for found_at in
        insert into msgtx.dedup_key as d (topic_id, dedup_key, partition_id, record_offset, record_timestamp, appended_at)
        select distinct on (r.topic_id, r.dedup_key collate "C")
               r.topic_id, r.dedup_key, r.partition_id, -r.ordinal, r."timestamp", msgtx.clock()
        from unnest(topic_ids, dedup_keys, partition_ids, timestamps) with ordinality
            r(topic_id, dedup_key, partition_id, "timestamp", ordinal)
        where r.topic_id <> 0
        order by r.topic_id, r.dedup_key collate "C", r.ordinal
        on conflict (topic_id, dedup_key) do update
            set partition_id = excluded.partition_id, record_offset = excluded.record_offset,
                record_timestamp = excluded.record_timestamp, appended_at = excluded.appended_at
            where d.appended_at <= oldest
        returning -d.record_offset
    loop
        taken[found_at] := true;
    end loop;

    batches := msgtx.batches_of_records(
        taken, partition_ids, timestamps, record_keys, record_values, header_counts, header_keys, header_values);
    if batches is not null then
        for answer in select a.error, a.detail, a.base_offset from msgtx.append(batches, true, wake) a loop
            errors := errors || answer.error;
            details := details || answer.detail;
            base_offsets := base_offsets || coalesce(answer.base_offset, -1);
        end loop;
        with placed as materialized (
            -- Batches are ascending by partition, and hold their records in the order of the call.
            select r.topic_id, r.dedup_key, r.partition_id, r."timestamp",
                   base_offsets[dense_rank() over (order by r.partition_id)] as base_offset,
                   row_number() over (partition by r.partition_id order by r.ordinal) - 1 as behind
            from unnest(topic_ids, dedup_keys, partition_ids, timestamps) with ordinality
                r(topic_id, dedup_key, partition_id, "timestamp", ordinal)
            where taken[r.ordinal]),
        refused as (
            delete from msgtx.dedup_key d where d.ctid = any(array(
                select k.ctid from placed p
                cross join lateral (
                    select k.ctid from msgtx.dedup_key k
                    where k.topic_id = p.topic_id and k.dedup_key = p.dedup_key limit 1) k
                where p.base_offset < 0)))
        update msgtx.dedup_key d
        set record_offset = p.base_offset + p.behind,
            record_timestamp = case when s.timestamps is null then s.max_timestamp else p."timestamp" end
        from placed p
        cross join lateral (
            select b.timestamps, b.max_timestamp from msgtx.record_batch b
            where b.partition_id = p.partition_id and b.base_offset = p.base_offset limit 1) s
        cross join lateral (
            select k.ctid from msgtx.dedup_key k where k.topic_id = p.topic_id and k.dedup_key = p.dedup_key limit 1) k
        where d.ctid = k.ctid;
    end if;

    return query
    select case when r.topic_id = 0 then 'UnknownTopicOrPartition' when d.topic_id is null then errors[r.place] end,
           case when r.topic_id = 0 then format('partition %s does not exist (any more)', r.partition_id)
                when d.topic_id is null then details[r.place] end,
           (select p.partition_index from msgtx.partition p where p.partition_id = d.partition_id),
           d.record_offset, d.record_timestamp, d.topic_id is not null and not taken[r.ordinal]
    from (
        select u.topic_id, u.dedup_key, u.partition_id, u.ordinal,
               first_value(u.place) over (partition by u.topic_id, u.dedup_key order by u.ordinal) as place
        from (
            select f.topic_id, f.dedup_key, f.partition_id, f.ordinal,
                   case when taken[f.ordinal] then dense_rank() over (order by not taken[f.ordinal], f.partition_id) end
                       as place
            from unnest(topic_ids, dedup_keys, partition_ids) with ordinality
                f(topic_id, dedup_key, partition_id, ordinal)) u) r
    left join lateral (
        select k.topic_id, k.partition_id, k.record_offset, k.record_timestamp from msgtx.dedup_key k
        where k.topic_id = r.topic_id and k.dedup_key = r.dedup_key limit 1) d on true
    order by r.ordinal;
end $$;
