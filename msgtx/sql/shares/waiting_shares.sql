-- waiting_shares(most) → share partitions on which something waits: it is in flight or parked, or the group has no member
-- and has not read all; those with transactions, then those without members come first; `found` is how many there are. As it
-- is now (current_spans).
--   readable_end       up to where the group may read
--   delayed, waiting   parked: until a time, the first one until due_at; for an earlier one with their key
--   exhausted          delivered as often as they may be, and not available any more; they become dead letters, as the
--                      rejected ones, if the group writes_letters
--   reason             why the first available record is to be delivered again; deliveries: how often it was
--   member_id, …       who has the first acquired record, until when
--   producer_id, …     the transaction of the first pending record, as it was opened
-- Reads consumer_group, share_group, share_state, share_parked, group_member, partition, topic, producer, the transaction
-- tables.
-- right: observe of all topics
-- null: due_at, reason, deliveries, member_id, client_host, client_process, locked_until, producer_id, producer_epoch
-- null: transaction_number, transactional_id, opened_at, timeout_ms, opener_host, opener_process, database_backend
-- null: seal_kind, lock_ms
-- plan: look-ups
create function msgtx.waiting_shares(most int)
returns table (
    group_name text, topic text, partition_index int, members int, start_offset bigint, next_offset bigint,
    readable_end bigint, max_record_locks int, available bigint, acquired bigint, pending bigint, rejected bigint,
    delayed bigint, waiting bigint, due_at timestamptz, reason text, deliveries int,
    member_id text, client_host text, client_process int, locked_until timestamptz, lock_ms int,
    producer_id bigint, producer_epoch int, transaction_number bigint, transactional_id text, opened_at timestamptz,
    timeout_ms int, opener_host text, opener_process int, database_backend int, seal_kind text, checked_at timestamptz,
    found bigint, writes_letters boolean, exhausted bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment timestamptz := msgtx.clock();
begin
    return query
    select c.name, t.name, p.partition_index, n.members, coalesce(least(f.start_offset, k.start_offset), next.at), next.at,
           e.readable_end, s.max_record_locks, f.available - f.exhausted, f.acquired, f.pending, f.rejected, k.delayed,
           k.waiting, k.due_at, again.reason, again.delivery_count, m.member_id, m.client_host, m.client_process,
           held.locked_until, s.record_lock_duration_ms, waits.producer_id, waits.producer_epoch, waits.transaction_number,
           w.transactional_id, o.opened_at, o.timeout_ms, o.client_host, o.client_process, o.database_backend, l.kind,
           moment, count(*) over (), s.writes_dead_letters, f.exhausted
    from msgtx.share_group s
    cross join lateral (select c.* from msgtx.consumer_group c where c.group_id = s.group_id limit 1) c
    cross join lateral (select count(*)::int as members from msgtx.living_members(s.group_id)) n
    cross join lateral msgtx.newest_share_states(s.group_id) v
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = v.partition_id limit 1) p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    cross join lateral (select greatest(v.next_offset, p.log_start_offset) as at) next
    cross join lateral (
        select msgtx.current_spans(s, v.partition_id, v.spans, p.log_start_offset, moment) as spans offset 0) now
    cross join lateral (select b.readable_end from msgtx.log_ends(array[v.partition_id], s.isolation) b limit 1) e
    cross join lateral msgtx.counts_of_spans(now.spans, s.delivery_count_limit) f
    cross join lateral (
        select min(greatest(k.first_offset, p.log_start_offset)) as start_offset, min(k.due_at) as due_at,
               coalesce(sum(k.last_offset - k.first_offset + 1) filter (where k.due_at is not null), 0)::bigint as delayed,
               coalesce(sum(k.last_offset - k.first_offset + 1) filter (where k.due_at is null), 0)::bigint as waiting
        from msgtx.share_parked k
        where k.group_id = s.group_id and k.partition_id = v.partition_id and k.last_offset >= p.log_start_offset) k
    left join lateral (
        select u.reason, u.delivery_count from unnest(now.spans) u
        where u.status = 'available' and u.delivery_count < s.delivery_count_limit
        order by u.first_offset limit 1) again on true
    left join lateral (
        select u.member_number, u.locked_until from unnest(now.spans) u where u.status = 'acquired'
        order by u.first_offset limit 1) held on true
    left join lateral (
        select m.member_id, m.client_host, m.client_process from msgtx.group_member m
        where m.member_number = held.member_number limit 1) m on true
    left join lateral (
        select u.producer_id, u.producer_epoch, u.transaction_number from unnest(now.spans) u where u.status = 'pending'
        order by u.first_offset limit 1) waits on true
    left join lateral msgtx.transaction_of(waits.producer_id, waits.producer_epoch, waits.transaction_number) o on true
    left join lateral (
        select w.transactional_id from msgtx.producer w where w.producer_id = waits.producer_id limit 1) w on true
    left join lateral msgtx.seal_of(waits.producer_id, waits.producer_epoch, waits.transaction_number) l on true
    where t.name <> msgtx.dead_letter_topic_of(c.name)
      and (now.spans <> '{}' or k.start_offset is not null or n.members = 0 and next.at < e.readable_end)
    order by f.pending > 0 desc, n.members, c.name, t.name, p.partition_index
    limit most;
end $$;
