-- why_no_session(kind, group, member, timeout_ms) → a sentence if a member of a group (kind: 'group', 'share group') cannot
-- have this session timeout, else null: the installation's settings bound it.
create function msgtx.why_no_session(kind text, group_name text, member_id text, session_timeout_ms int) returns text
language plpgsql stable as $$
declare
    least_ms constant bigint := msgtx.setting_value('group_min_session_timeout_ms');
    most_ms constant bigint := msgtx.setting_value('group_max_session_timeout_ms');
begin
    return case when session_timeout_ms between least_ms and most_ms is not true then format(
        '%s %s: the session timeout of member %s is %s ms; group_min_session_timeout_ms is %s,'
        ' group_max_session_timeout_ms is %s', kind, group_name, member_id, session_timeout_ms, least_ms, most_ms) end;
end $$;
