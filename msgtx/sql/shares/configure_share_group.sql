-- configure_share_group(group, settings) changes settings of a share group, and makes it if there is none; error and detail
-- say why not:
--   ConfigError     the name is a consumer group's, a setting is not known, or has no such value; or dead letters would go
--                   to a compacted topic, or to one that the group reads or has read
--   GroupNotEmpty   auto_offset_reset, isolation and ordering change in a group without members only
-- This call also allows the group to write dead letters (may_write_dead_letters).
-- Locks the group (exclusive). Reads topic, share_topic, group_member. Writes consumer_group, share_group and, through
-- make_share_group, share_state. Flushed.
-- right: admin of all topics
-- plan: look-ups
create function msgtx.configure_share_group(group_name text, settings jsonb, out error text, out detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    found_id int;
    letters text;
    refused text[];  -- reason and sentence
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_group(group_name);
    select g.group_id into found_id from msgtx.consumer_group g where g.name = group_name;
    refused := case
        when group_name ~ '^[a-zA-Z0-9._-]{1,236}$' is not true then array['group', format(
            'share group %s: its dead letters have a topic with its name; use 1 to 236 of a-z A-Z 0-9 . _ -',
                left(group_name, 50))]
        when found_id is not null and not exists (select from msgtx.share_group s where s.group_id = found_id) then array[
            'consumer group', format(
            '%s is a consumer group: choose another name for the share group, or delete that group', group_name)] end;
    refused := coalesce(refused, (
        select array[w.facts ->> 'name', w.sentence] from msgtx.why_not_set('share_group', settings) w), case
        when settings ? 'auto_offset_reset' and settings ->> 'auto_offset_reset' ~ (
            '^(latest|earliest|by_duration:P(?=[0-9T])([0-9]{1,9}D)?'
            '(T(?=[0-9])([0-9]{1,9}H)?([0-9]{1,9}M)?([0-9]{1,12}([.][0-9]{1,6})?S)?)?)$') is not true then array[
            'auto_offset_reset', format('auto_offset_reset is latest, earliest or by_duration:PnDTnHnMnS, not %s',
            quote_nullable(settings ->> 'auto_offset_reset'))]
        when not msgtx.is_topic_name(settings ->> 'dead_letter_topic') then array['dead_letter_topic', format(
            'dead_letter_topic %s is no name of a topic: use 1 to 249 of a-z A-Z 0-9 . _ - (and not . or ..)',
            quote_literal(settings ->> 'dead_letter_topic'))] end);
    letters := case when settings ? 'dead_letter_topic'
        then coalesce(settings ->> 'dead_letter_topic', group_name || '-dead-letters')
        else msgtx.dead_letter_topic_of(group_name) end;
    refused := coalesce(refused, msgtx.why_no_dead_letters(group_name, letters, array(
        select s.topic_name from msgtx.share_topic s where s.group_id = found_id
        union
        select u from msgtx.group_member m cross join lateral unnest(m.topics) u where m.group_id = found_id)));
    if refused is not null then
        error := 'ConfigError: ' || refused[1];
        detail := refused[2];
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
        -- make generate: settings.assigned share_group
        (auto_offset_reset, isolation, record_lock_duration_ms, delivery_count_limit, max_record_locks,
        dead_letter_topic, ordering, release_backoff_ms, release_backoff_max_ms) = (select g.auto_offset_reset,
        g.isolation, g.record_lock_duration_ms, g.delivery_count_limit, g.max_record_locks, g.dead_letter_topic,
        g.ordering, g.release_backoff_ms, g.release_backoff_max_ms
        -- end
        from jsonb_populate_record(s, settings) g),
        longest_lock_ms = greatest(s.longest_lock_ms, (settings ->> 'record_lock_duration_ms')::int),
        writes_dead_letters = true
    where s.group_id = found_id;
end $$;
