-- join_share_group(group, member, …) makes a client a member of a share group; the first one makes the group. error and
-- detail say why not. Asked again for the same member id with the same number, the answer is the same.
--   in_member_number  drawn by the client, from 2^60 on: who calls under it has proved to be the member, so nothing shows it
--                     to others. null: it is drawn here; only the owner can join again then
--   in_topics         that it reads. With a name new to the group it begins here and now (share_start_offsets); a partition
--                     or topic made under that name later is read from its beginning. Other names say nothing
--   InvalidRequest    also: another member has the id or the number
--   ConfigError       a consumer group's name; dead letters would go to a compacted topic, or to one that the group reads
-- The group may write dead letters from the first member on that may (may_write_dead_letters). Locks the group (exclusive).
-- Removes members whose session is over (take_out_members). Reads topic, partition. Deletes from group_heartbeat. Writes
-- consumer_group, share_group, share_topic, group_member, group_heartbeat (number 0), share_state. Flushed.
-- right: consume
-- null: group_id, member_number
-- plan: look-ups
create function msgtx.join_share_group(
    group_name text, in_member_id text, in_client_host text, in_client_process int, in_session_timeout_ms int,
        in_topics text[], in_member_number bigint default null,
    out error text, out detail text, out group_id int, out member_number bigint
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    most_topics constant int := 10000;  -- as in join_group
    drawn constant bigint := ('x' || left(translate(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
    readable constant text[] := msgtx.patterns_of_caller('{consume}');
    refused text[];  -- reason and sentence
    begun text[];
    gone bigint[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    refused := case
        when coalesce(group_name, '') = '' then array['group', 'a share group has a name']
        when group_name !~ '^[a-zA-Z0-9._-]{1,236}$' then array['group', format(
            'share group %s: its dead letters have a topic with its name; use 1 to 236 of a-z A-Z 0-9 . _ -',
                left(group_name, 50))]
        when coalesce(in_member_id, '') = '' then array['member', format('share group %s: a member has an id', group_name)]
        when greatest(octet_length(group_name), octet_length(in_member_id), octet_length(in_client_host)) > 1000 then array[
            'size', format('share group %s: its name, and id and host of a member have at most 1000 bytes each',
                left(group_name, 50))]
        when in_member_number < 1152921504606846976 then array['guessable', format(
            'share group %s: the number of member %s is to be drawn at random, from 2^60 on', group_name, in_member_id)]
        when cardinality(in_topics) <= most_topics is not true then array['topics', format(
            'share group %s: member %s subscribes to %s topics; at most %s', group_name, in_member_id,
                cardinality(in_topics), most_topics)]
        when exists (select from unnest(in_topics) u where msgtx.is_topic_name(u) is not true) then array['topic', format(
            'share group %s: member %s subscribes to %s, which is no name of a topic', group_name, in_member_id, (
                select quote_nullable(left(u, 50)) from unnest(in_topics) u where msgtx.is_topic_name(u) is not true
                    limit 1))] end;
    if refused is not null then
        select 'InvalidRequest: ' || refused[1], refused[2] into error, detail;
        return;
    end if;
    detail := msgtx.why_no_session('share group', group_name, in_member_id, in_session_timeout_ms);
    if detail is not null then
        error := 'InvalidSessionTimeout';
        return;
    end if;
    ignored := msgtx.lock_group(group_name);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    select g.group_id into group_id from msgtx.consumer_group g where g.name = group_name;
    if found and not exists (select from msgtx.share_group s where s.group_id = join_share_group.group_id) then
        error := 'ConfigError: consumer group';
        detail := format('%s is a consumer group: choose another name for the share group, or delete that group',
            group_name);
        return;
    end if;
    refused := msgtx.why_no_dead_letters(group_name, msgtx.dead_letter_topic_of(group_name), in_topics);
    if refused is not null then
        select 'ConfigError: ' || refused[1], refused[2] into error, detail;
        return;
    end if;
    select m.member_number into member_number from msgtx.group_member m
    where m.group_id = join_share_group.group_id and m.member_id = in_member_id;
    if found then
        if member_number <> in_member_number or in_member_number is null and not msgtx.acts_for_owner() then
            error := 'InvalidRequest: another member';
            detail := format('share group %s: member %s is another one', group_name, in_member_id);
            group_id := null;
            member_number := null;
        end if;
        return;
    end if;
    if exists (select from msgtx.group_member m where m.member_number = in_member_number) then
        error := 'InvalidRequest: number';
        detail := format('share group %s: the number of member %s is another member''s; draw one', group_name, in_member_id);
        group_id := null;
        return;
    end if;
    -- As in join_group: whose session is over is in nobody's way.
    gone := array(select o.member_number from msgtx.overdue_members(join_share_group.group_id, msgtx.clock()) o);
    if gone <> '{}' then
        ignored := msgtx.take_out_members(join_share_group.group_id, gone) is not null;
    end if;
    if (select count(*) from msgtx.group_member m where m.group_id = join_share_group.group_id)
       >= msgtx.setting_value('group_max_members') then
        error := 'GroupMaxSizeReached';
        detail := format('share group %s has as many members as it may (group_max_members is %s)', group_name,
                         msgtx.setting_value('group_max_members'));
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    group_id := coalesce(group_id, msgtx.make_share_group(group_name, msgtx.dead_letter_topic_of(group_name)));
    if msgtx.may_write_dead_letters(msgtx.dead_letter_topic_of(group_name)) then
        update msgtx.share_group s set writes_dead_letters = true
        where s.group_id = join_share_group.group_id and not s.writes_dead_letters;
    end if;
    insert into msgtx.group_member (
        member_number, group_id, member_id, client_host, client_process, session_timeout_ms, topics, joined_at)
    overriding system value
    values (coalesce(in_member_number, 1152921504606846976 | (drawn & 4611686018427387903)),
            group_id, in_member_id, in_client_host, in_client_process, in_session_timeout_ms, in_topics, msgtx.clock())
    returning msgtx.group_member.member_number into member_number;
    -- Its session may have ended before: the first answer was lost, and a sweep came.
    delete from msgtx.group_heartbeat h where h.member_number = join_share_group.member_number;
    insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
    values (join_share_group.member_number, 0, msgtx.clock());
    with names as (
        insert into msgtx.share_topic (group_id, topic_name)
        select distinct join_share_group.group_id, u from unnest(in_topics) u where readable is null or u like any (readable)
        on conflict do nothing
        returning topic_name)
    select array_agg(n.topic_name) into begun from names n;
    -- Nobody else begins with a name that is new to the group: the first member to look at it has joined for it. A
    -- client that has not may have been faster; a reset was.
    insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)
    select join_share_group.group_id, b.partition_id, 1, b.start_offset, '{}'
    from msgtx.share_group g
    cross join lateral msgtx.share_start_offsets(g, array(
        select p.partition_id from msgtx.topic t join msgtx.partition p on p.topic_id = t.topic_id
        where t.name = any (begun) and not exists (
            select from msgtx.share_state s where s.group_id = g.group_id and s.partition_id = p.partition_id)
        order by p.partition_id), msgtx.clock()) b
    where g.group_id = join_share_group.group_id
    on conflict do nothing;
end $$;
