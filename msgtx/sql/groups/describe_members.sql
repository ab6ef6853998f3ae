-- describe_members(group) → a row per member; of a group without members one row with nulls, of an unknown group none. One
-- snapshot: an assignment that is made of it is written by its generation (assign_partitions).
--   stale                                 the assignment was made of other members
--   group_topics_version, topics_version  of the topics that the assignment was made of; as they are now
--   member_number                         0 in a share group: there each member proves to be itself by its number
--   owned, owned_since                    partitions, ascending, and the generation in which the member got each
--   target                                partitions that it is to own
-- Reads consumer_group, share_group, group_member, group_heartbeat, group_assignment, installation.
-- right: consume, observe
-- null: strategy, member_number, member_id, group_instance_id, client_host, client_process, session_timeout_ms
-- null: joined_at, heartbeat_at, session_over, topics, pattern
-- plan: look-ups
create function msgtx.describe_members(group_name text)
returns table (
    group_id int, generation int, stale boolean, strategy text, group_topics_version bigint, topics_version bigint,
    member_number bigint, member_id text, group_instance_id text, client_host text, client_process int,
    session_timeout_ms int, joined_at timestamptz, heartbeat_at timestamptz, session_over boolean, topics text[],
    pattern text, owned int[], owned_since int[], target int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment timestamptz := msgtx.clock();
    asked msgtx.consumer_group;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_sight_of_groups(array[group_name]);
    select g.* into asked from msgtx.consumer_group g where g.name = group_name;
    if not found then
        return;
    end if;
    return query
    with owners as (
        select a.owner, array_agg(a.partition_id order by a.partition_id) as partitions,
               array_agg(a.owner_since order by a.partition_id) as since
        from msgtx.group_assignment a where a.group_id = asked.group_id group by a.owner),
    targets as (
        select a.target, array_agg(a.partition_id order by a.partition_id) as partitions
        from msgtx.group_assignment a where a.group_id = asked.group_id group by a.target)
    select asked.group_id, asked.generation, asked.stale, asked.strategy, asked.topics_version, i.topics_version,
           case when m.member_number is not null and exists (select from msgtx.share_group s
               where s.group_id = asked.group_id)
               then 0 else m.member_number end, m.member_id, m.group_instance_id, m.client_host, m.client_process,
           m.session_timeout_ms, m.joined_at, newest.heartbeat_at,
           msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment),
           m.topics, m.pattern, coalesce(o.partitions, '{}'), coalesce(o.since, '{}'), coalesce(t.partitions, '{}')
    from msgtx.installation i
    -- sorted after that
    left join (select m.* from msgtx.group_member m where m.group_id = asked.group_id offset 0) m on true
    left join owners o on o.owner = m.member_number
    left join targets t on t.target = m.member_number
    left join lateral msgtx.newest_heartbeat(m.member_number) newest on true
    order by m.joined_at, m.member_number;
end $$;
