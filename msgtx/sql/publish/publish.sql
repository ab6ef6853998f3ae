-- publish(topic, value, key, …) sends a record with the COMMIT of the caller's SQL transaction: it is there exactly if the
-- transaction's other effects are (I6), and nothing of it after a rollback, also to a savepoint. A record that cannot
-- be stored is refused at once. From psql, a trigger, any language: select msgtx.publish('orders', '{"id": 1}', '7').
--   value, key    text, stored as UTF-8; or bytes, as value_bytes and key_bytes; a record without a value is a tombstone
--   partition     null: by the key, as the clients' default; without a key one partition for topic and transaction, as good
--                 as drawn: by a hash of both, so that it need not be remembered
--   headers       a JSON object of texts, null for a header without a value; they come in the order that jsonb has
--   "timestamp"   null: the time of this call. A word of SQL's grammar: named in a call, it is quoted
--   deliver_at    when share groups deliver it, as a header; or delay, from this call on
-- It reads no log and locks nothing: trigger staged_at_commit does. Writes staged_record.
-- right: produce
-- plan: look-ups
create function msgtx.publish(
    topic text, value text default null, key text default null, value_bytes bytea default null, key_bytes bytea default null,
    partition int default null, headers jsonb default null, "timestamp" timestamptz default null,
    deliver_at timestamptz default null, delay interval default null)
returns void language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_topic record;
    record_bytes bigint;
    place int;
    timestamp_ms bigint;
    due_ms numeric;
    ignored boolean := msgtx.refuse_stale_snapshot() and msgtx.refuse_standby();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_right_on_topic('produce', topic);
    if (value is not null and value_bytes is not null) or (key is not null and key_bytes is not null) then
        raise exception using errcode = 'MX042', message = 'a record has one value and one key: text, or bytes',
            detail = jsonb_build_object('name', 'value');
    end if;
    if not isfinite("timestamp") then
        raise exception using errcode = 'MX042', message = format(
            'a timestamp is in milliseconds since 1970 UTC and before the year 9999, not %s', "timestamp"),
            detail = jsonb_build_object('name', 'timestamp', 'given', "timestamp");
    end if;
    timestamp_ms := floor(extract(epoch from coalesce("timestamp", msgtx.clock())) * 1000);
    if not msgtx.is_record_time(timestamp_ms) then
        ignored := msgtx.check_times(array[timestamp_ms]);
    end if;
    value_bytes := coalesce(value_bytes, convert_to(value, 'UTF8'));
    key_bytes := coalesce(key_bytes, convert_to(key, 'UTF8'));
    if deliver_at is not null and delay is not null then
        raise exception using errcode = 'MX042',
            message = 'a record is delivered at a time (deliver_at) or after one (delay), not both',
            detail = jsonb_build_object('name', 'deliver_at');
    elsif deliver_at is not null or delay is not null then
        -- no interval leads out of what a timestamp can be
        due_ms := floor(extract(epoch from coalesce(
            deliver_at, msgtx.clock() + least(greatest(delay, interval '0'), interval '4000 years'))) * 1000);
        if due_ms not between 0 and 99999999999999 then
            raise exception using errcode = 'MX042', message = format(
                'a record is delivered from 1970 and before the year 5138, not at %s',
                coalesce(deliver_at::text, delay::text)),
                detail = jsonb_build_object('name', 'deliver_at', 'given', coalesce(deliver_at::text, delay::text));
        end if;
        headers := coalesce(headers, '{}') || jsonb_build_object('msgtx.deliver-at', due_ms::text);
    end if;
    record_bytes := coalesce(octet_length(key_bytes), 0)::bigint + coalesce(octet_length(value_bytes), 0)
        + case when headers is null then 0 else msgtx.header_bytes(headers) end;

    select t.topic_id, t.cleanup_policy, t.max_message_bytes,
           (select 1 + max(p.partition_index) from msgtx.partition p where p.topic_id = t.topic_id) as partition_count
    into found_topic
    from msgtx.topic t where t.name = publish.topic;
    if not found then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', quote_nullable(topic)),
            detail = jsonb_build_object('topic', topic);
    end if;
    if partition not between 0 and found_topic.partition_count - 1 then
        raise exception using errcode = 'MX003', message = format(
            'topic %s has no partition %s, only 0 to %s', topic, partition, found_topic.partition_count - 1),
            detail = jsonb_build_object('topic', topic, 'partition', partition);
    end if;
    if key_bytes is null and found_topic.cleanup_policy like 'compact%' then
        raise exception using errcode = 'MX087', message = format('%s is compacted: every record needs a key', topic),
            detail = jsonb_build_object('topic', topic, 'reason', 'no key');
    end if;
    if record_bytes > found_topic.max_message_bytes then
        raise exception using errcode = 'MX010', message = format(
            '%s takes records of at most %s bytes (max_message_bytes); one has %s',
            topic, found_topic.max_message_bytes, record_bytes),
            detail = jsonb_build_object('topic', topic, 'given', record_bytes, 'limit', found_topic.max_message_bytes);
    end if;

    place := coalesce(
        partition, msgtx.partition_of_key(key_bytes, found_topic.partition_count),
        abs(hashint8extended(pg_current_xact_id()::text::bigint, found_topic.topic_id) % found_topic.partition_count));
    insert into msgtx.staged_record (partition_id, key, value, headers, "timestamp", record_bytes)
    select p.partition_id, key_bytes, value_bytes, nullif(headers, '{}'),
           timestamp_ms, record_bytes
    from msgtx.partition p where p.topic_id = found_topic.topic_id and p.partition_index = place;
    ignored := msgtx.stage_commit();
end $$;
