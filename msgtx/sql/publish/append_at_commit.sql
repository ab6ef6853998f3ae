-- append_at_commit(batches) stores records without a producer in a SQL transaction whose COMMIT the client has sent behind
-- this call, all of them or none: nothing is staged, and partitions are not locked while a client is awaited. For databases
-- without deferrable constraints of the user's: one of them may wait for another session's row, in the COMMIT. Raises
-- refusals; and IllegalState, reason 'staged', above READ COMMITTED and where something is staged: the client goes back to a
-- savepoint, and uses commit_in_session. No waiting consumer is woken.
-- Locks partitions (exclusive, ascending). Reads staged_commit. Writes record_batch. Flushed.
-- right: produce
-- plan: look-ups
create function msgtx.append_at_commit(batches msgtx.batch[]) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean := msgtx.refuse_standby();
begin
    if current_setting('transaction_isolation') <> 'read committed'
       or exists (select from msgtx.staged_commit c where c.staged_by = pg_current_xact_id()) then
        raise exception using errcode = 'MX000', column = 'IllegalState: staged', message =
            'append_at_commit is for SQL transactions at READ COMMITTED, in which nothing is staged: use commit_in_session';
    end if;
    ignored := msgtx.limit_session();
    return msgtx.append_or_raise(batches, false);
end $$;
