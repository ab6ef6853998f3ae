-- begin_attempt(app_id, query_id, batch_id, timeout_ms) → a producer id for one attempt of one task of a batch, to write
-- under transaction (producer_id, 0, 0); null if the batch is committed already (P20). No other attempt gets that id, so
-- none can fence it. It is registered: the decision of the batch finds every attempt, also those that no driver remembers.
-- Its timeout is a session's; renew_attempts prolongs it while a task works on the batch. Locks the application (share).
-- Writes producer, spark_attempt. Flushed: else a crash would hand the id out again (P41).
-- right: produce
-- null: producer_id
create function msgtx.begin_attempt(
    in_app_id text, in_query_id text, in_batch_id bigint, in_timeout_ms int, out producer_id bigint
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.check_timeout(in_timeout_ms);
    ignored := msgtx.lock_spark_app_shared(in_app_id);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('transactional_id', array[in_app_id]);
    if msgtx.is_batch_committed(in_app_id, in_query_id, in_batch_id) then
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    producer_id := msgtx.next_producer_id();
    insert into msgtx.producer (producer_id, epoch, timeout_ms, initialized_at, shard, role_name)
    values (producer_id, 0, in_timeout_ms, msgtx.clock(), msgtx.shard_of(null, producer_id), msgtx.caller());
    insert into msgtx.spark_attempt (app_id, query_id, batch_id, producer_id, begun_at)
    values (in_app_id, in_query_id, in_batch_id, producer_id, msgtx.clock());
end $$;
