-- blocking_partitions(most) → the partitions that an undecided transaction holds back, each with the first one: readers
-- stop at first_offset. Of the topics that the caller may see; the oldest transactions first. A row without a partition: the
-- transaction has offsets of groups, or acknowledgements of share groups, that wait for its decision (show_offsets and
-- show_acknowledgements say which the caller may see).
--   in_producer_id, …   only those of this transaction
--   waits_since    when its first row was stored       deciding_session   pid of the session for which it is sealed
--   transactional_id   null also where the caller may not use it
-- Reads topic, partition, record_batch, producer, transaction_seal, share_pending, pg_locks and, through
-- undecided_transactions, transaction tables.
-- right: consume, observe
-- null: partition_id, topic, partition_index, first_offset, log_end_offset, transactional_id, opened_at, timeout_ms
-- null: client_host, client_process, database_backend, seal_kind, waits_since, deciding_session
-- plan: look-ups, nested loops
create function msgtx.blocking_partitions(
    most int, in_producer_id bigint default null, in_producer_epoch int default null,
    in_transaction_number bigint default null)
returns table (
    partition_id int, topic text, partition_index int, first_offset bigint, log_end_offset bigint, producer_id bigint,
    producer_epoch int, transaction_number bigint, transactional_id text, opened_at timestamptz, timeout_ms int,
    client_host text, client_process int, database_backend int, seal_kind text, waits_since timestamptz,
    deciding_session int, checked_at timestamptz)
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
    if in_producer_id is not null then
        asked := array(
            select tp.partition_id from msgtx.transaction_partition tp
            where tp.producer_id = in_producer_id and tp.producer_epoch = in_producer_epoch
              and tp.transaction_number = in_transaction_number and coalesce(tp.partition_id = any(asked), true));
    end if;
    return query
    with seats as materialized (
        select l.objid::bigint as seat, l.pid from pg_locks l
        where l.locktype = 'advisory' and l.classid = 1836279560 and l.objsubid = 2 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database())),
    held as (
        select b.partition_id, u.topic, u.partition_index, u.first_offset, u.log_end_offset, u.producer_id, u.producer_epoch,
               u.transaction_number, u.transactional_id, u.opened_at, u.timeout_ms, u.client_host, u.client_process,
               u.database_backend, u.seal_kind, b.appended_at
        from msgtx.undecided_transactions(
            asked, 1, false, null, case when in_producer_id is null then most end) u
        cross join lateral (
            select p.partition_id, r.appended_at
            from (select t.topic_id from msgtx.topic t where t.name = u.topic limit 1) t
            cross join lateral (
                select p.partition_id from msgtx.partition p
                where p.topic_id = t.topic_id and p.partition_index = u.partition_index limit 1) p
            left join lateral (
                select r.appended_at from msgtx.record_batch r
                where r.partition_id = p.partition_id and r.base_offset >= u.first_offset
                order by r.base_offset limit 1) r on true) b
        union all
        select null, null, null, null, null, n.producer_id, n.producer_epoch, n.transaction_number, w.transactional_id,
               t.opened_at, t.timeout_ms, t.client_host, t.client_process, t.database_backend, s.kind, null
        from (
            select s.producer_id, s.producer_epoch, s.transaction_number from msgtx.transaction_seal s
            where s.commit_sequences <> '{}'
            union
            select q.producer_id, q.producer_epoch, q.transaction_number from msgtx.share_pending q) n
        left join lateral msgtx.transaction_of(n.producer_id, n.producer_epoch, n.transaction_number) t on true
        left join lateral msgtx.seal_of(n.producer_id, n.producer_epoch, n.transaction_number) s on true
        left join lateral (
            select w.transactional_id from msgtx.producer w where w.producer_id = n.producer_id limit 1) w on true
        where not exists (select from msgtx.decision_of(n.producer_id, n.producer_epoch, n.transaction_number)))
    select h.partition_id, h.topic, h.partition_index, h.first_offset, h.log_end_offset, h.producer_id, h.producer_epoch,
           h.transaction_number,
           case when sees_ids or msgtx.may_use('transactional_id', h.transactional_id) then h.transactional_id end,
           h.opened_at, h.timeout_ms, h.client_host, h.client_process, h.database_backend, h.seal_kind, h.appended_at,
           seat.pid, msgtx.clock()
    from held h
    left join lateral (
        select w.pid
        from msgtx.seal_of(h.producer_id, h.producer_epoch, h.transaction_number) s
        join seats w on w.seat = s.seat::bigint & 4294967295
        limit 1) seat on h.seal_kind = 'session'
    where in_producer_id is null
       or (h.producer_id, h.producer_epoch, h.transaction_number)
          = (in_producer_id, in_producer_epoch, in_transaction_number)
    order by h.opened_at nulls first, h.topic, h.partition_index;
end $$;
