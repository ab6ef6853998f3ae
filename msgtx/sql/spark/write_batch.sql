-- write_batch(app_id, batch_id, receipt, topic, "values", …) appends records of one task of a batch, undecided until
-- commit_batch; → the receipt that the task's next call takes, and of which the last one goes to commit_batch.
--   receipt      null: the first call of an attempt of a task. The answer is null if the batch is committed already
--   keys, partitions, timestamps, headers   of each record; null: none; the partition that its key chooses, else one for
--                all of the call; the time of the call; none
--   timeout      the attempt is aborted if it is not committed by then, and the batch cannot be committed
-- A call that fails stores nothing; then the task begins a new attempt. Repeated with the same receipt after its answer was
-- lost, it stores nothing twice. Locks as begin_attempt and append do. Reads topic, partition. Writes through both. Only the
-- first call is on disk when it returns: commit_batch flushes the others.
-- right: produce
-- null: value
-- plan: look-ups
create function msgtx.write_batch(
    app_id text, batch_id bigint, receipt text, topic text, "values" bytea[], keys bytea[] default null,
    partitions int[] default null, timestamps timestamptz[] default null, headers jsonb[] default null,
    timeout interval default '10 min')
returns text language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_variable
declare
    records constant int := cardinality("values");
    now_ms constant bigint := floor(extract(epoch from msgtx.clock()) * 1000);
    ids int[];  -- of the topic's partitions, by their index
    chosen int[];  -- the partition of each record
    attempt bigint;
    tails jsonb;  -- the last sequence that this attempt has sent, by partition id
    batches msgtx.batch[];
    refused record;
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_right_on_topic('produce', topic);
begin
    if records > 0 is not true or cardinality(keys) <> records or cardinality(partitions) <> records
       or cardinality(timestamps) <> records or cardinality(headers) <> records then
        raise exception using errcode = 'MX042', message = 'a call takes records: as many keys, … as values, one at least',
            detail = jsonb_build_object('name', 'records', 'reason', 'columns');
    end if;
    select min(r.producer_id),
           coalesce(jsonb_object_agg(r.partition_id, r.last_sequence) filter (where r.partition_id is not null), '{}')
    into attempt, tails
    from msgtx.parts_of_receipt(receipt) r;
    ids := array(
        select p.partition_id from msgtx.topic t join msgtx.partition p on p.topic_id = t.topic_id
        where t.name = write_batch.topic order by p.partition_index);
    if ids = '{}' then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', quote_nullable(topic)),
            detail = jsonb_build_object('topic', topic);
    end if;
    chosen := (
        select array_agg(ids[1 + coalesce(r.partition, msgtx.partition_of_key(r.key, cardinality(ids)), free.place)]
                         order by r.ordinal)
        from (select floor(random() * cardinality(ids))::int as place) free
        cross join unnest("values", keys, partitions) with ordinality r(value, key, partition, ordinal));
    if array_position(chosen, null) > 0 then
        raise exception using errcode = 'MX003', message = format(
            'topic %s has no partition %s, only 0 to %s', topic, partitions[array_position(chosen, null)],
            cardinality(ids) - 1),
            detail = jsonb_build_object('topic', topic, 'partition', partitions[array_position(chosen, null)]);
    end if;
    attempt := coalesce(attempt, msgtx.begin_attempt(
        app_id, '', batch_id, least(extract(epoch from timeout) * 1000, 2147483647)::int));
    if attempt is null then
        return null;
    end if;
    batches := (
        select array_agg(
            row(b.partition_id, attempt, 0, 0, 1 + coalesce((tails ->> b.partition_id::text)::bigint, -1), b.max_timestamp,
                b.keys, b."values", b.timestamps, b.header_counts, b.header_keys, b.header_values)::msgtx.batch
            order by b.partition_id)
        from msgtx.header_columns(headers) h
        cross join lateral unnest(msgtx.batches_of_records(
            array_fill(true, array[records]), chosen,
            array(select case when isfinite(u.moment) then floor(extract(epoch from u.moment) * 1000)::bigint
                              when u.moment is null then now_ms else -1 end  -- append refuses it
                  from unnest("values", timestamps) with ordinality u(value, moment, ordinal) order by u.ordinal),
            keys, "values", h.counts, h.keys, h."values")) b);
    select a.error, a.detail into refused from msgtx.append(batches, durable => false, wake => false) a
    where a.error is not null limit 1;
    if found then
        raise exception using errcode = 'MX000', column = refused.error, message = refused.detail;
    end if;
    return attempt || coalesce((
        select string_agg(format(' %s=%s', t.id, t.last), '' order by t.id::int)
        from jsonb_each_text(tails || (
            select jsonb_object_agg(b.partition_id, b.base_sequence + cardinality(b."values") - 1)
            from unnest(batches) b)) t(id, last)), '');
end $$;
