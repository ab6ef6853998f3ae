-- spans_of_share_groups() → the records that share groups have in flight now (current_spans) or parked, for view
-- share_spans; one row for each span of records of one state. On topics that the caller may observe: all groups. On
-- topics that it may only consume: the groups that it may use. Reads consumer_group, share_group, share_state,
-- share_parked, group_member, partition, topic.
-- right: consume, observe
-- plan: look-ups
create function msgtx.spans_of_share_groups()
returns table (
    group_name text, topic text, partition int, first_offset bigint, last_offset bigint, state text, delivery_count int,
    reason text, member_id text, client_host text, client_process int, locked_until timestamptz, due_at timestamptz,
    producer_id bigint, producer_epoch int, transaction_number bigint, answer text, partition_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment timestamptz := msgtx.clock();
    topics constant int[] := msgtx.topics_of_caller('{consume,observe}');
    administered constant int[] := msgtx.topics_of_caller('{observe}');
begin
    return query
    select c.name, t.name, p.partition_index, u.first_offset, u.last_offset, u.status, u.delivery_count, u.reason,
           m.member_id, m.client_host, m.client_process, case when u.status = 'acquired' then u.locked_until end, u.due_at,
           u.producer_id, u.producer_epoch, u.transaction_number, u.answer, p.partition_id
    from msgtx.share_group s
    cross join lateral (select c.* from msgtx.consumer_group c where c.group_id = s.group_id limit 1) c
    cross join lateral msgtx.newest_share_states(s.group_id) v
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = v.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    cross join lateral (
        select c.first_offset, c.last_offset, c.status, c.delivery_count, c.member_number, c.locked_until,
               null::timestamptz as due_at, c.producer_id, c.producer_epoch, c.transaction_number, c.answer, c.reason
        from unnest(msgtx.current_spans(s, v.partition_id, v.spans, p.log_start_offset, moment)) c
        union all
        select greatest(k.first_offset, p.log_start_offset), k.last_offset,
               case when k.due_at is null then 'waiting' else 'delayed' end, k.delivery_count, k.member_number, null,
                   k.due_at, null, null, null, null, k.reason
        from msgtx.share_parked k
        where k.group_id = s.group_id and k.partition_id = v.partition_id and k.last_offset >= p.log_start_offset) u
    left join lateral (
        select m.member_id, m.client_host, m.client_process from msgtx.group_member m
        where m.member_number = u.member_number limit 1) m on true
    where (topics is null or t.topic_id = any(topics))
      and (msgtx.may_use('group', c.name) or administered is null or t.topic_id = any(administered));
end $$;
