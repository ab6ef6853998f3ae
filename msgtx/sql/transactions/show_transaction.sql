-- show_transaction(name) → all rows of a transaction as one, but for its partitions, offsets and acknowledgements; no row:
-- it is not stored, or the view transactions would hide it. The state has the view's names.
--   partitions                    on how many it wrote, of those that the caller may see
--   app_id, query_id, batch_id    of Spark, if a task wrote it
-- A transactional id, and an application of Spark, are null also where the caller may not use them.
-- Reads transaction tables, producer, partition, partition_floor, spark_attempt.
-- right: consume, observe
-- null: transactional_id, current_epoch, opened_at, timeout_ms, client_host, client_process, database_backend, seal_kind
-- null: sealed_at, seal_deadline, outcome, decided_at, decided_by, app_id, query_id, batch_id
-- plan: look-ups, nested loops
create function msgtx.show_transaction(in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint)
returns table (
    state text, transactional_id text, current_epoch int, opened_at timestamptz, timeout_ms int, client_host text,
    client_process int, database_backend int, seal_kind text, sealed_at timestamptz, seal_deadline timestamptz,
    outcome text, decided_at timestamptz, decided_by text, partitions int, app_id text, query_id text, batch_id bigint,
    checked_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    sees_ids constant boolean := msgtx.topics_of_caller('{observe}') is null or msgtx.may_use('transactional_id', null);
begin
    return query
    select case
               when d.outcome is null then case when s.kind is null then 'Ongoing' else 'Prepared' end
               when exists (
                   select from unnest(d.partitions, d.last_offsets) x(partition_id, last_offset)
                   where (select true from msgtx.partition p where p.partition_id = x.partition_id)
                     and not exists (select from msgtx.marker_of(
                         x.partition_id, in_producer_id, in_producer_epoch, in_transaction_number))
                     and (select f.stable_floor from msgtx.floor_of(x.partition_id) f) > x.last_offset is not true)
                   then case when d.outcome = 'COMMIT' then 'PrepareCommit' else 'PrepareAbort' end
               when d.outcome = 'COMMIT' then 'CompleteCommit' else 'CompleteAbort' end,
           case when sees_ids or msgtx.may_use('transactional_id', w.transactional_id) then w.transactional_id end,
           w.epoch, t.opened_at, t.timeout_ms, t.client_host, t.client_process, t.database_backend,
           s.kind, s.sealed_at, s.deadline, d.outcome, d.decided_at, d.decided_by, places.found, a.app_id, a.query_id,
           a.batch_id, msgtx.clock()
    from (select in_producer_id as producer_id offset 0) asked
    left join lateral msgtx.transaction_of(asked.producer_id, in_producer_epoch, in_transaction_number) t on true
    left join lateral msgtx.decision_of(asked.producer_id, in_producer_epoch, in_transaction_number) d on true
    left join lateral msgtx.seal_of(asked.producer_id, in_producer_epoch, in_transaction_number) s on true
    left join lateral (
        select w.* from msgtx.producer w where w.producer_id = asked.producer_id limit 1) w on true
    left join lateral (
        select a.* from msgtx.spark_attempt a where a.producer_id = asked.producer_id limit 1) a
        on sees_ids or msgtx.may_use('transactional_id', a.app_id)
    cross join lateral (
        select count(*)::int as found
        from msgtx.spans_to_show(asked.producer_id, in_producer_epoch, in_transaction_number, visible)) places
    where (t.opened_at is not null or d.outcome is not null) and (places.found > 0 or visible is null);
end $$;
