-- check_topic_settings(settings) raises if one of a topic's settings, as JSON, is unknown or out of range. What is not named is
-- not looked at. A record has at most 1,000,000,000 bytes: PostgreSQL holds no value of
-- 1 GiB, and what is left of it is for the batches that go with the record in one call (append_staged: 32 MiB), and for lengths.
create function msgtx.check_topic_settings(settings jsonb) returns boolean language plpgsql stable as $$
declare
    unknown text := (
        select string_agg(k, ', ') from jsonb_object_keys(settings) k
        where k not in ('cleanup_policy', 'retention_ms', 'retention_bytes', 'delete_retention_ms',
                        'max_message_bytes', 'timestamp_type'));
    wrong record;
begin
    if unknown is not null then
        raise exception using errcode = 'MX040', message = format('unknown topic setting: %s', unknown),
            detail = jsonb_build_object('name', unknown);
    end if;
    select s.name, settings ->> s.name as given, s.least into wrong
    from (values ('retention_ms', -1), ('retention_bytes', -1), ('delete_retention_ms', 0),
                 ('max_message_bytes', 1)) s(name, least)
    where (settings ->> s.name)::bigint < s.least limit 1;
    if found then
        raise exception using errcode = 'MX040', message = format(
            '%s must be at least %s, not %s', wrong.name, wrong.least, wrong.given),
            detail = jsonb_build_object('name', wrong.name, 'given', wrong.given, 'limit', wrong.least);
    end if;
    if (settings ->> 'max_message_bytes')::bigint > 1000000000 then
        raise exception using errcode = 'MX040', message = format(
            'max_message_bytes must be at most 1000000000 (PostgreSQL holds no larger values), not %s',
            settings ->> 'max_message_bytes'),
            detail = jsonb_build_object('name', 'max_message_bytes', 'given', settings ->> 'max_message_bytes', 'limit', 1000000000);
    end if;
    select s.name, settings ->> s.name as given, s.words into wrong
    from (values ('cleanup_policy', array['delete', 'compact', 'compact,delete']),
                 ('timestamp_type', array['CreateTime', 'LogAppendTime'])) s(name, words)
    where settings ->> s.name <> all (s.words) limit 1;
    if found then
        raise exception using errcode = 'MX040', message = format(
            '%s is one of %s; not %s', wrong.name, array_to_string(wrong.words, ' '), quote_literal(wrong.given)),
            detail = jsonb_build_object('name', wrong.name, 'given', wrong.given, 'limit', wrong.words);
    end if;
    return true;
end $$;
