-- configure_share_group(group, settings) changes settings of a share group, and makes it if there is none; error and detail say why not:
--   ConfigError     the name is a consumer group's, a setting is not known, or has no such value; or dead letters would go to a topic that
--                   the group reads or has read, or that is compacted
--   GroupNotEmpty   auto_offset_reset, isolation and ordering change in a group without members only
-- Who may call this allows the group to write dead letters (may_write_dead_letters).
-- Locks the group (exclusive). Reads topic, share_topic, group_member. Writes consumer_group, share_group and, through make_share_group,
-- share_state. Flushed.
create function msgtx.configure_share_group(group_name text, settings jsonb, out error text, out detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' set jit = off set enable_seqscan = off as $$
declare
    known constant text[] := array['auto_offset_reset', 'isolation', 'record_lock_duration_ms', 'delivery_count_limit',
                                   'max_record_locks', 'dead_letter_topic', 'ordering', 'release_backoff_ms',
                                   'release_backoff_max_ms'];
    found_id int;
    letters text;
    setting record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    select g.group_id into found_id from msgtx.consumer_group g where g.name = group_name;
    detail := case
        when group_name ~ '^[a-zA-Z0-9._-]{1,236}$' is not true then format(
            'share group %s: its dead letters have a topic with its name; use 1 to 236 of a-z A-Z 0-9 . _ -', left(group_name, 50))
        when found_id is not null and not exists (select from msgtx.share_group s where s.group_id = found_id) then format(
            '%s is a consumer group: choose another name for the share group, or delete that group', group_name) end;
    for setting in select e.key, e.value #>> '{}' as value from jsonb_each(settings) e loop
        detail := coalesce(detail, case
            when setting.key <> all (known) then format(
                'share groups have no setting %s; known are %s', setting.key, array_to_string(known, ', '))
            when setting.key = 'auto_offset_reset'
                 and setting.value ~ ('^(latest|earliest|by_duration:P(?=[0-9T])([0-9]{1,9}D)?'
                                      '(T(?=[0-9])([0-9]{1,9}H)?([0-9]{1,9}M)?([0-9]{1,12}([.][0-9]{1,6})?S)?)?)$') is not true then format(
                'auto_offset_reset is latest, earliest or by_duration:PnDTnHnMnS, not %s', quote_nullable(setting.value))
            when setting.key = 'isolation' and setting.value in ('read_committed', 'read_uncommitted') is not true then format(
                'isolation is read_committed or read_uncommitted, not %s', quote_nullable(setting.value))
            when setting.key = 'ordering' and setting.value in ('none', 'key') is not true then format(
                'ordering is none or key, not %s', quote_nullable(setting.value))
            when setting.key in ('release_backoff_ms', 'release_backoff_max_ms')
                 and (setting.value ~ '^[0-9]{1,9}$') is not true then format(
                '%s is a number from 0 to 999999999, not %s', setting.key, quote_nullable(setting.value))
            when setting.key in ('record_lock_duration_ms', 'delivery_count_limit', 'max_record_locks')
                 and (setting.value ~ '^[0-9]{1,9}$' and setting.value::int > 0) is not true then format(
                '%s is a number from 1 to 999999999, not %s', setting.key, quote_nullable(setting.value))
            when setting.key = 'dead_letter_topic' and not msgtx.is_topic_name(setting.value) then format(
                'dead_letter_topic %s is no name of a topic: use 1 to 249 of a-z A-Z 0-9 . _ - (and not . or ..)',
                quote_nullable(setting.value)) end);
    end loop;
    letters := case when settings ? 'dead_letter_topic'
        then coalesce(settings ->> 'dead_letter_topic', group_name || '-dead-letters')
        else msgtx.dead_letter_topic_of(group_name) end;
    detail := coalesce(detail, msgtx.why_no_dead_letters(group_name, letters, array(
        select s.topic_name from msgtx.share_topic s where s.group_id = found_id
        union
        select u from msgtx.group_member m cross join lateral unnest(m.topics) u where m.group_id = found_id)));
    if detail is not null then
        error := 'ConfigError';
        return;
    end if;
    if settings ?| array['auto_offset_reset', 'isolation', 'ordering'] then
        detail := msgtx.why_not_empty(group_name, found_id);
        if detail is not null then
            error := 'GroupNotEmpty';
            return;
        end if;
    end if;
    ignored := msgtx.flush_at_commit();
    found_id := coalesce(found_id, msgtx.make_share_group(group_name, letters));
    update msgtx.share_group s set
        auto_offset_reset = coalesce(settings ->> 'auto_offset_reset', s.auto_offset_reset),
        isolation = coalesce(settings ->> 'isolation', s.isolation),
        record_lock_duration_ms = coalesce((settings ->> 'record_lock_duration_ms')::int, s.record_lock_duration_ms),
        longest_lock_ms = greatest(s.longest_lock_ms, (settings ->> 'record_lock_duration_ms')::int),
        delivery_count_limit = coalesce((settings ->> 'delivery_count_limit')::int, s.delivery_count_limit),
        max_record_locks = coalesce((settings ->> 'max_record_locks')::int, s.max_record_locks),
        ordering = coalesce(settings ->> 'ordering', s.ordering),
        release_backoff_ms = coalesce((settings ->> 'release_backoff_ms')::int, s.release_backoff_ms),
        release_backoff_max_ms = coalesce((settings ->> 'release_backoff_max_ms')::int, s.release_backoff_max_ms),
        dead_letter_topic = case when settings ? 'dead_letter_topic' then settings ->> 'dead_letter_topic' else s.dead_letter_topic end,
        writes_dead_letters = true
    where s.group_id = found_id;
end $$;
