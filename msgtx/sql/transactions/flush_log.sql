-- flush_log() makes what was committed before it last, also without a flush of its own: WAL is one sequence, and this COMMIT
-- is flushed. A call that holds locks commits without a flush, and this one behind it: so others have the locks while the
-- disk works. Flushed.
-- right: consume
create function msgtx.flush_log() returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_logical_emit_message(true, 'msgtx', '');  -- else there would be no COMMIT to flush
    return msgtx.flush_at_commit();
end $$;
