-- flush_log() makes earlier commits durable, also those without a flush of their own: WAL is one sequence, and this
-- COMMIT is flushed. A call that holds locks commits without a flush, and this follows: so others can take the locks
-- while the disk works. And a call that is answered from what an earlier one stored writes nothing itself, so its COMMIT
-- would wait for no synchronous standby, while somebody may have cancelled the wait of the earlier one (decision 0167).
-- Flushed.
-- right: produce, consume
create function msgtx.flush_log() returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_logical_emit_message(true, 'msgtx', '');  -- else there would be no COMMIT to flush
    return msgtx.flush_at_commit();
end $$;
