-- heartbeat_group(group, member, …, number) notes that a member lives; → the group's generation, and whether the assignment
-- is stale: members or topics have changed since, or the member has matched its pattern with an earlier version of the
-- topics. Numbers are counted by the member, on from the one before; an older one that comes late changes nothing. Also
-- removes other members whose session is over, if the group's lock is free; else the next one does. It watches the 20
-- members that follow it by their ids, around to its own, so that a heartbeat of a large group costs no more: some living
-- member comes before each dead one.
--   error   FencedInstance: another member has its instance id; UnknownMember: it is not a member (any more)
-- Tries the group's lock. Reads consumer_group, group_member, group_heartbeat, installation. Writes group_heartbeat and,
-- through take_out_members, the rest. Not flushed by itself: a crash of the server takes back a heartbeat, not a session.
-- right: consume
-- commit: asynchronous
-- null: generation, stale
-- plan: look-ups, nested loops, in order
create function msgtx.heartbeat_group(
    group_name text, in_member_number bigint, in_member_id text, in_instance_id text, in_heartbeat_number bigint,
    out error text, out detail text, out generation int, out stale boolean
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    moment timestamptz := msgtx.clock();
    watched constant int := 20;
    member record;
    gone bigint[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
    -- One statement: each one, and each expression, is set up anew in every SQL transaction.
    select g.group_id, g.generation, 
           g.stale or g.topics_version <> i.topics_version
               or coalesce(same.topics_version <> i.topics_version, false) as stale,
           same.known, holder.member_id as holder,
           exists (
               select from (
                   (select m.member_number, m.session_timeout_ms from msgtx.group_member m
                    where m.group_id = g.group_id and m.member_id > in_member_id order by m.member_id limit watched)
                   union all
                   (select m.member_number, m.session_timeout_ms from msgtx.group_member m
                    where m.group_id = g.group_id and m.member_id < in_member_id order by m.member_id limit watched)
                   limit watched) m
               cross join lateral msgtx.newest_heartbeat(m.member_number) newest
               where msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment)) as others_overdue
    into member
    from msgtx.consumer_group g
    cross join msgtx.installation i
    left join lateral (
        select m.group_id = g.group_id and m.member_id = in_member_id as known, m.topics_version
        from msgtx.group_member m
        where m.member_number = in_member_number limit 1) same on true
    left join lateral (
        select s.member_id from msgtx.group_member s
        where s.group_id = g.group_id and s.group_instance_id = in_instance_id and same.known is not true limit 1) holder
            on true
    where g.name = group_name;
    if member.holder <> in_member_id then
        error := 'FencedInstance';
        detail := format('group %s: group_instance_id %s belongs to member %s now, not to %s',
                         group_name, in_instance_id, member.holder, in_member_id);
        return;
    end if;
    if member.known is not true then
        error := 'UnknownMember';
        detail := format('group %s has no member %s (any more)', group_name, in_member_id);
        return;
    end if;
    insert into msgtx.group_heartbeat (member_number, heartbeat_number, heartbeat_at)
    values (in_member_number, in_heartbeat_number, moment) on conflict do nothing;
    generation := member.generation;
    stale := member.stale;
    if member.others_overdue and msgtx.try_lock_group(group_name) then
        -- After the lock, and at all of them: a living member may have sent a heartbeat in between.
        gone := array(
            select o.member_number from msgtx.overdue_members(member.group_id, moment) o
            where o.member_number <> in_member_number);
        if gone <> '{}' then
            generation := msgtx.take_out_members(member.group_id, gone);
            stale := true;
        end if;
    end if;
end $$;
