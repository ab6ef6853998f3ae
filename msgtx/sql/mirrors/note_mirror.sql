-- note_mirror(name, run_id, producer, lag, error) notes that a run of a mirror lives, and its lag → whether the mirror is
-- still of this run. in_error: why it ends. Not flushed. Writes mirror.
-- right: produce
-- plan: look-ups
create function msgtx.note_mirror(
    in_name text, in_run_id uuid, in_producer_id bigint, in_lag_records bigint, in_lag_ms bigint,
    in_error text default null)
returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]);
begin
    update msgtx.mirror m set seen_at = msgtx.clock(), lag_records = in_lag_records, lag_ms = in_lag_ms, error = in_error
    where m.name = in_name and m.run_id = in_run_id and m.producer_id = in_producer_id;
    return found;
end $$;
