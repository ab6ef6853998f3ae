-- fence_producer(transactional_id) raises the epoch of a transactional id and aborts its open transaction: the producer
-- with the id is fenced. → the new epoch; null if the id is not known.
-- Locks the producer (exclusive). Writes producer, transaction_decision, markers if the marking lock is free. Flushed.
-- right: admin of all topics
-- null: producer_id, epoch
create function msgtx.fence_producer(in_transactional_id text, out producer_id bigint, out epoch int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    select p.producer_id into producer_id from msgtx.producer p where p.transactional_id = in_transactional_id;
    if producer_id is null then
        return;
    end if;
    ignored := msgtx.lock_producer(producer_id);
    ignored := msgtx.flush_at_commit();
    ignored := msgtx.abort_undecided(producer_id, 'fence');
    update msgtx.producer p set epoch = p.epoch + 1, epoch_before = null, initialized_at = msgtx.clock()
    where p.producer_id = fence_producer.producer_id returning p.producer_id, p.epoch into producer_id, epoch;
end $$;
