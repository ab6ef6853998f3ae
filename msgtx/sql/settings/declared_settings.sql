-- declared_settings(subject) → the settings of a topic or of a share group: the bounds of a number, the choices of a word. A
-- text has neither.
create function msgtx.declared_settings(subject text)
returns table (name text, lowest bigint, highest bigint, choices text[]) language sql immutable as $$
    select d.name, d.lowest, d.highest, d.choices from (values
        -- make generate: settings.bounds
        ('topic', 'cleanup_policy', null, null, array['delete', 'compact', 'compact,delete']),
        ('topic', 'retention_ms', -1, 9223372036854775807, null),
        ('topic', 'retention_bytes', -1, 9223372036854775807, null),
        ('topic', 'delete_retention_ms', 0, 9223372036854775807, null),
        ('topic', 'max_message_bytes', 1, 1000000000, null),
        ('topic', 'timestamp_type', null, null, array['CreateTime', 'LogAppendTime']),
        ('share_group', 'auto_offset_reset', null, null, null),
        ('share_group', 'isolation', null, null, array['read_committed', 'read_uncommitted']),
        ('share_group', 'record_lock_duration_ms', 1, 999999999, null),
        ('share_group', 'delivery_count_limit', 1, 999999999, null),
        ('share_group', 'max_record_locks', 1, 999999999, null),
        ('share_group', 'dead_letter_topic', null, null, null),
        ('share_group', 'ordering', null, null, array['none', 'key']),
        ('share_group', 'release_backoff_ms', 0, 999999999, null),
        ('share_group', 'release_backoff_max_ms', 0, 999999999, null)
        -- end
        ) d(subject, name, lowest, highest, choices)
    where d.subject = declared_settings.subject
$$;
