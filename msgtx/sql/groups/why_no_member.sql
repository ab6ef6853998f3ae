-- why_no_member(group, member, …) → a sentence if what a client asks for to join a consumer group cannot be, else null.
create function msgtx.why_no_member(
    group_name text, in_member_id text, in_instance_id text, in_client_host text, in_session_timeout_ms int,
    in_topics text[], in_pattern text, in_topics_version bigint) returns text language plpgsql stable as $$
declare
    most_topics constant int := 10000;  -- names that each division of the group reads, of each member
    most_bytes constant int := 1000;  -- of an id, a host, a pattern: `groups describe` and each division read them
begin
    return case
        when coalesce(group_name, '') = '' then 'a consumer group has a name'
        when coalesce(in_member_id, '') = '' then format('group %s: a member has an id', group_name)
        when in_instance_id = '' then format(
            'group %s: the group_instance_id of member %s is empty', group_name, in_member_id)
        when coalesce(in_session_timeout_ms, 0) <= 0 then format(
            'group %s: the session timeout of member %s is not above 0', group_name, in_member_id)
        when in_topics is null or (in_pattern is not null and in_topics_version is null) then format(
            'group %s: member %s names the topics that it subscribes to; with a pattern, those that match it and their '
            'version',
            group_name, in_member_id)
        when greatest(octet_length(group_name), octet_length(in_member_id), octet_length(in_instance_id),
                      octet_length(in_client_host), octet_length(in_pattern)) > most_bytes then format(
            'group %s: its name, and id, instance id, host and pattern of a member have at most %s bytes each',
            left(group_name, 50), most_bytes)
        when cardinality(in_topics) > most_topics then format(
            'group %s: member %s subscribes to %s topics, at most %s are allowed',
            group_name, in_member_id, cardinality(in_topics), most_topics)
        when exists (select from unnest(in_topics) u(name) where u.name is null or octet_length(u.name) > most_bytes)
            then format(
            'group %s: member %s subscribes to what is no name of a topic', group_name, in_member_id) end;
end $$;
