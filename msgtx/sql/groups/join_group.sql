-- join_group(group, member, …) makes a client a member; error and detail say why not. The first one makes the group. A
-- member that joins again gets a new subscription and keeps its partitions; with the same subscription nothing changes. A
-- static member (with instance id) that comes back under another member id fences the one before. It owns that one's
-- partitions from the new generation on; if its subscription is the same, the assignment stays. Removes others whose
-- session is over.
--   in_topics, in_pattern   the subscription. The member itself finds the topics that match its pattern, so that no other
--                           member spends time or fails on it
--   in_topics_version       the version of the topics at that look: see function topics_version
--   member_number           its key in the group's tables; a number is never given out twice
-- The installation's settings bound the session timeout and the number of members; constants bound texts and topics.
-- Locks the group (exclusive). Writes consumer_group, group_member, group_assignment, group_heartbeat (number 0). Flushed.
-- right: consume
-- null: group_id, member_number, generation
-- plan: look-ups
create function msgtx.join_group(
    group_name text, in_member_id text, in_instance_id text, in_client_host text, in_client_process int,
    in_session_timeout_ms int, in_strategy text, in_topics text[], in_pattern text,
    in_topics_version bigint,
    out error text, out detail text, out group_id int, out member_number bigint, out generation int
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    found_version constant bigint := case when in_pattern is not null then in_topics_version end;
    joined record;
    before msgtx.group_member;
    gone bigint[];
    changed boolean;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    detail := msgtx.why_no_member(
        group_name, in_member_id, in_instance_id, in_client_host, in_session_timeout_ms, in_topics, in_pattern,
        in_topics_version);
    if detail is not null then
        error := 'InvalidRequest';
        return;
    end if;
    detail := msgtx.why_no_session('group', group_name, in_member_id, in_session_timeout_ms);
    if detail is not null then
        error := 'InvalidSessionTimeout';
        return;
    end if;
    if in_strategy is null or in_strategy not in ('range', 'roundrobin', 'cooperative-sticky') then
        error := 'ConfigError: strategy';
        detail := format('there is no assignment strategy %s; known are range, roundrobin, cooperative-sticky',
                         quote_nullable(in_strategy));
        return;
    end if;

    ignored := msgtx.lock_group(group_name);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    if not exists (select from msgtx.consumer_group g where g.name = group_name) then
        insert into msgtx.consumer_group (name) values (group_name) on conflict do nothing;
    end if;
    select g.group_id, g.generation, g.strategy into joined from msgtx.consumer_group g where g.name = group_name;
    if exists (select from msgtx.share_group s where s.group_id = joined.group_id) then
        error := 'ConfigError: share group';
        detail := format('%s is a share group: choose another name for the consumer group, or delete that group',
            group_name);
        return;
    end if;
    gone := array(
        select o.member_number from msgtx.overdue_members(joined.group_id, msgtx.clock()) o
        where o.member_id <> in_member_id
          and (in_instance_id is null or o.group_instance_id is distinct from in_instance_id));
    if gone <> '{}' then
        joined.generation := msgtx.take_out_members(joined.group_id, gone);
    end if;

    select m.* into before from msgtx.group_member m where m.group_id = joined.group_id and m.member_id = in_member_id;
    if not found and in_instance_id is not null then
        select m.* into before from msgtx.group_member m
        where m.group_id = joined.group_id and m.group_instance_id = in_instance_id;
    elsif before.group_instance_id is distinct from in_instance_id then
        error := 'InvalidRequest: instance';
        detail := format('group %s: member %s has the group_instance_id %s, and asks for %s', group_name, in_member_id,
                         quote_nullable(before.group_instance_id), quote_nullable(in_instance_id));
        return;
    end if;
    if joined.strategy <> in_strategy and exists (
        select from msgtx.group_member m
        where m.group_id = joined.group_id and m.member_number is distinct from before.member_number) then
        error := 'ConfigError: strategies';
        detail := format('group %s assigns by %s; member %s asks for %s: all members of a group use one strategy',
                         group_name, joined.strategy, in_member_id, in_strategy);
        return;
    end if;

    if before.member_number is null and (
        select count(*) from msgtx.group_member m where m.group_id = joined.group_id)
        >= msgtx.setting_value('group_max_members') then
        error := 'GroupMaxSizeReached';
        detail := format('group %s has as many members as it may (group_max_members is %s); member %s is one too many',
                         group_name, msgtx.setting_value('group_max_members'), in_member_id);
        return;
    end if;

    group_id := joined.group_id;
    changed := (before.topics, before.pattern, joined.strategy) is distinct from (in_topics, in_pattern, in_strategy);
    if before.member_id = in_member_id then
        member_number := before.member_number;
        ignored := msgtx.flush_at_commit();
        update msgtx.group_member m
        set client_host = in_client_host, client_process = in_client_process, session_timeout_ms = in_session_timeout_ms,
            topics = in_topics, pattern = in_pattern, topics_version = found_version
        where m.member_number = before.member_number;
        generation := case when changed then msgtx.raise_generation(group_id, true) else joined.generation end;
    else
        delete from msgtx.group_member m where m.member_number = before.member_number;
        insert into msgtx.group_member (
            group_id, member_id, group_instance_id, client_host, client_process, session_timeout_ms, topics, pattern,
            topics_version, joined_at)
        values (joined.group_id, in_member_id, in_instance_id, in_client_host, in_client_process, in_session_timeout_ms,
                in_topics, in_pattern, found_version, msgtx.clock())
        returning msgtx.group_member.member_number into member_number;
        insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
        values (join_group.member_number, 0, msgtx.clock());
        generation := msgtx.raise_generation(group_id, changed);
        update msgtx.group_assignment a
        set owner = join_group.member_number, owner_since = join_group.generation
        where a.group_id = joined.group_id and a.owner = before.member_number;
        update msgtx.group_assignment a set target = join_group.member_number
        where a.group_id = joined.group_id and a.target = before.member_number;
    end if;
    update msgtx.consumer_group g set strategy = in_strategy
    where g.group_id = joined.group_id and g.strategy is distinct from in_strategy;
end $$;
