-- blocking_partitions(most) → the partitions that an undecided transaction holds back, each with the first one: readers
-- stop at first_offset. Of the topics that the caller may see; the oldest transactions first. `found` is how many there are.
--   waits_since    when its first row was stored       deciding_session   pid of the session for which it is sealed
--   transactional_id   null also where the caller may not use it
-- Reads topic, partition, record_batch, transaction_seal, pg_locks and, through undecided_transactions, transaction tables.
-- right: consume, observe
-- null: log_end_offset, transactional_id, opened_at, timeout_ms, client_host, client_process, database_backend, seal_kind
-- null: waits_since, deciding_session
-- plan: look-ups, nested loops
create function msgtx.blocking_partitions(most int)
returns table (
    partition_id int, topic text, partition_index int, first_offset bigint, log_end_offset bigint, producer_id bigint,
    producer_epoch int, transaction_number bigint, transactional_id text, opened_at timestamptz, timeout_ms int,
    client_host text, client_process int, database_backend int, seal_kind text, waits_since timestamptz,
    deciding_session int, checked_at timestamptz, found bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    sees_ids constant boolean := msgtx.topics_of_caller('{observe}') is null or msgtx.may_use('transactional_id', null);
    asked int[];
begin
    if visible is not null then
        asked := array(
            select p.partition_id from unnest(visible) v(topic_id)
            cross join lateral (select p.* from msgtx.partition p where p.topic_id = v.topic_id offset 0) p);
    end if;
    return query
    with seats as materialized (
        select l.objid::bigint as seat, l.pid from pg_locks l
        where l.locktype = 'advisory' and l.classid = 1836279560 and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database()))
    select p.partition_id, u.topic, u.partition_index, u.first_offset, u.log_end_offset, u.producer_id, u.producer_epoch,
           u.transaction_number,
           case when sees_ids or msgtx.may_use('transactional_id', u.transactional_id) then u.transactional_id end,
           u.opened_at, u.timeout_ms, u.client_host, u.client_process, u.database_backend, u.seal_kind, b.appended_at,
           seat.pid, u.checked_at, u.found
    from msgtx.undecided_transactions(asked, 1, false, null, most) u
    cross join lateral (select t.topic_id from msgtx.topic t where t.name = u.topic limit 1) t
    cross join lateral (
        select p.partition_id from msgtx.partition p
        where p.topic_id = t.topic_id and p.partition_index = u.partition_index limit 1) p
    left join lateral (
        select b.appended_at from msgtx.record_batch b
        where b.partition_id = p.partition_id and b.base_offset >= u.first_offset order by b.base_offset limit 1) b on true
    left join lateral (
        select w.pid
        from msgtx.seal_of(u.producer_id, u.producer_epoch, u.transaction_number) s
        join seats w on w.seat = s.seat::bigint & 4294967295
        limit 1) seat on u.seal_kind = 'session'
    order by u.opened_at nulls first, u.topic, u.partition_index;
end $$;
