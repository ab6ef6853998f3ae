-- groups_of_record(partition, offset) → what each group has done with a record: the groups that have an offset, an owner or
-- records in flight in its partition, by name. Of those that the caller may use, or all if it may observe the topic.
--   state   done; pending: in a transaction that is not decided; ahead: not read yet; of share groups also acquired,
--           available (again), delayed, waiting (for an earlier record with its key), rejected (it becomes a dead letter)
--   at      when the group's offset passed the record, null if that is not known (any more); or the end of a lock or delay
--   ahead   offsets in front of the record that the group has not read      told   all of this as words
-- Reads consumer_group, share_group, share_state, share_parked, group_offset, group_assignment, group_member,
-- group_heartbeat, partition and transaction tables.
-- right: consume, observe
-- null: at, ahead, member_id, client_host, client_process, delivery_count, reason
-- plan: look-ups
create function msgtx.groups_of_record(in_partition_id int, in_offset bigint)
returns table (
    group_name text, is_share_group boolean, state text, at timestamptz, ahead bigint, member_id text, client_host text,
    client_process int, delivery_count int, reason text, told text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment constant timestamptz := msgtx.clock();
    observed constant int[] := msgtx.topics_of_caller('{observe}');
    asked msgtx.partition;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', array[in_partition_id]);
    select p.* into asked from msgtx.partition p where p.partition_id = in_partition_id;
    return query
    with fate as (
        select g.name, false as is_share_group,
               case when newest.committed_offset > in_offset then 'done' when waiting.found then 'pending' else 'ahead' end
                   as state,
               case when newest.committed_offset > in_offset then passed.at end as at,
               case when newest.committed_offset is null then null
                   when newest.committed_offset <= in_offset
                   then in_offset - greatest(newest.committed_offset, asked.log_start_offset) end as ahead,
               case when newest.committed_offset > in_offset then null else owned.owner end as member_number,
               null::int as delivery_count, null as reason
        from msgtx.consumer_group g
        left join lateral msgtx.newest_offset_of(g.group_id, in_partition_id) newest on true
        left join lateral (
            select true as found from msgtx.group_offset o
            where o.group_id = g.group_id and o.partition_id = in_partition_id
              and o.commit_sequence > coalesce(newest.commit_sequence, 0) and o.committed_offset > in_offset
              and not exists (select from msgtx.decision_of(o.producer_id, o.producer_epoch, o.transaction_number))
              and exists (select from msgtx.seal_of(o.producer_id, o.producer_epoch, o.transaction_number))
            limit 1) waiting on true
        -- The last row in front of the record is still there: the next one passed it. Else sweeps have removed that row.
        left join lateral (
            select next.committed_at as at
            from (
                select o.commit_sequence from msgtx.group_offset o
                where o.group_id = g.group_id and o.partition_id = in_partition_id and o.committed_offset <= in_offset
                  and msgtx.offset_counts(o.producer_id, o.producer_epoch, o.transaction_number)
                order by o.commit_sequence desc limit 1) front
            cross join lateral (
                select o.committed_at from msgtx.group_offset o
                where o.group_id = g.group_id and o.partition_id = in_partition_id
                  and o.commit_sequence > front.commit_sequence
                  and msgtx.offset_counts(o.producer_id, o.producer_epoch, o.transaction_number)
                order by o.commit_sequence limit 1) next) passed on true
        left join lateral (
            select a.owner from msgtx.group_assignment a
            where a.group_id = g.group_id and a.partition_id = in_partition_id limit 1) owned on true
        where (newest.commit_sequence is not null or waiting.found or owned.owner is not null)
          and not exists (select from msgtx.share_group s where s.group_id = g.group_id)
        union all
        select g.name, true,
               case when k.state is not null then k.state when u.status is not null then u.status
                   when in_offset < v.next_offset then 'done' else 'ahead' end,
               coalesce(k.due_at, case when u.status = 'acquired' then u.locked_until end),
               case when in_offset >= v.next_offset then in_offset - greatest(v.next_offset, asked.log_start_offset) end,
               u.member_number, coalesce(k.delivery_count, u.delivery_count),
               case when msgtx.shows_records(in_partition_id) then coalesce(k.reason, u.reason) end
        from msgtx.share_group s
        cross join lateral (select c.* from msgtx.consumer_group c where c.group_id = s.group_id limit 1) g
        cross join lateral (
            select w.next_offset, w.spans from msgtx.share_state w
            where w.group_id = s.group_id and w.partition_id = in_partition_id order by w.version desc limit 1) v
        left join lateral (
            select c.* from unnest(
                msgtx.current_spans(s, in_partition_id, v.spans, asked.log_start_offset, moment)) c
            where in_offset between c.first_offset and c.last_offset limit 1) u on true
        left join lateral (
            select case when k.due_at is null then 'waiting' else 'delayed' end as state, k.due_at, k.delivery_count,
                   k.reason
            from msgtx.share_parked k
            where k.group_id = s.group_id and k.partition_id = in_partition_id and k.first_offset <= in_offset
              and k.last_offset >= in_offset
            order by k.first_offset desc limit 1) k on true)
    select f.name, f.is_share_group, f.state, f.at, f.ahead, m.member_id, m.client_host, m.client_process, f.delivery_count,
           f.reason, case f.state
               when 'done' then 'done' || coalesce(' at ' || msgtx.time_text(f.at), '')
               when 'pending' then 'done in a transaction that is not decided'
               when 'ahead' then case when f.ahead is null then 'the group has not begun here'
                       when f.ahead = 0 then 'the next one to be read'
                       else format('%s record%s ahead', f.ahead, case when f.ahead > 1 then 's' end) end
                   || case when f.is_share_group then ''
                       when m.member_id is null then ', no member has the partition'
                       else format(', read by %s', m.member_id)
                            || case when silent.is_over then ', which is silent' else '' end end
               when 'acquired' then format('held by %s until %s', coalesce(m.member_id, 'a member'), msgtx.time_text(f.at))
               when 'delayed' then format('released until %s', msgtx.time_text(f.at))
               when 'waiting' then 'waits for an earlier record with its key'
               when 'rejected' then 'rejected, becomes a dead letter'
               else 'to be delivered again' end
               || case when f.delivery_count > 0 then format(', delivered %s time%s', f.delivery_count,
                       case when f.delivery_count > 1 then 's' end) else '' end
               || coalesce(': ' || f.reason, '')
    from fate f
    left join lateral (
        select m.* from msgtx.group_member m where m.member_number = f.member_number limit 1) m on true
    left join lateral msgtx.session_of(f.member_number, moment) silent on true
    where coalesce(asked.topic_id = any(observed), true) or msgtx.may_use('group', f.name)
    order by f.name;
end $$;
