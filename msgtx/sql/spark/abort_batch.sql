-- abort_batch(app_id, query_id, batch_id, most) aborts undecided attempts of this batch and of earlier ones; → how many. As
-- many as `most`: there may be more, for the next call. Each takes a place of the lock table until the end of the SQL
-- transaction. A committed batch has none: if a driver takes its own commit for failed, it undoes nothing (P20).
-- Without query_id: of every query of the application. A stream's batch also ends attempts of other queries of its
-- application. Later calls do not look at attempts decided now. Locks the application (exclusive), producers (exclusive,
-- ascending). Writes transaction_decision, spark_floor. Flushed.
-- right: produce
-- plan: look-ups, nested loops
create function msgtx.abort_batch(in_app_id text, in_query_id text, in_batch_id bigint, most int default 250)
returns int language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    attempt bigint;
    aborted int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_spark_app(in_app_id);
    ignored := msgtx.acts_for_owner() or msgtx.require_names('transactional_id', array[in_app_id]);
    ignored := msgtx.flush_at_commit();
    for attempt in select a.producer_id from msgtx.undecided_attempts(in_app_id, in_query_id, in_batch_id) a limit most loop
        perform msgtx.decide(attempt, 0, 0, 'ABORT');
        perform msgtx.wake_readers(d.partitions) from msgtx.decision_of(attempt, 0, 0) d;
        aborted := aborted + 1;
    end loop;
    if coalesce(in_query_id, '') = '' then
        ignored := msgtx.raise_spark_floor(in_app_id, true);
    end if;
    if coalesce(in_query_id, 'any') <> '' then
        ignored := msgtx.raise_spark_floor(in_app_id, false);
    end if;
    return aborted;
end $$;
