-- begin_batch(app_id, batch_id) → whether a batch of an application is to be written; false: it is committed already. What
-- an earlier run of it, or of an earlier batch, has left undecided is aborted: up to 250 attempts, which take a place of the
-- lock table each; the decision and later calls abort the rest. For programs that use write_batch and commit_batch.
-- Locks and writes as abort_batch does. Flushed.
-- right: produce
create function msgtx.begin_batch(app_id text, batch_id bigint) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored int := msgtx.abort_batch(app_id, '', batch_id);
begin
    if msgtx.is_batch_committed(app_id, '', batch_id) then
        return not msgtx.flush_log();  -- its COMMIT may have waited in vain, see there
    end if;
    return true;
end $$;
