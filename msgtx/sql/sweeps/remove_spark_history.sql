-- remove_spark_history(after, most) removes old rows of Spark's batches, at most 10,000 of each table in one call: fence
-- rows below the newest of their query; ranges below its newest committed batch, and those with two later batches (the last
-- two expose a query that fell behind); attempts of a committed batch or past the history, if they are decided, or can
-- never be because their id has expired or is fenced. Attempts without a committed batch go with the history; for rows that
-- lie further in the future than it lasts it begins here. A floor goes that is superseded, or of an application without
-- attempts. → how many rows.
-- Locks the leases (share); passes by rows that are locked. Reads producer, transaction_decision. Deletes from spark_batch,
-- spark_attempt, spark_range, spark_floor. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups
create function msgtx.remove_spark_history(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    rows_at_once constant int := 10000;  -- in one SQL transaction
    moment constant timestamptz := msgtx.clock();
    history constant interval := msgtx.setting_value('transaction_history_ms') * interval '1 ms';
    oldest constant timestamptz := moment - history;
    removed_now int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    update msgtx.spark_attempt a set begun_at = moment
    where a.ctid = any(array(
        select s.ctid from msgtx.spark_attempt s
        where s.begun_at > moment + history and (shards is null or msgtx.shard_of(s.app_id, null) = any(shards))
        limit rows_at_once for update skip locked));
    update msgtx.spark_range r set recorded_at = moment
    where r.ctid = any(array(
        select s.ctid from msgtx.spark_range s
        where s.recorded_at > moment + history and (shards is null or msgtx.shard_of(s.query_id, null) = any(shards))
        limit rows_at_once for update skip locked));
    delete from msgtx.spark_attempt a
    where a.ctid = any(array(
        select s.ctid from msgtx.spark_attempt s
        where (s.begun_at < oldest or msgtx.is_batch_committed(s.app_id, s.query_id, s.batch_id))
          and (shards is null or msgtx.shard_of(s.app_id, null) = any(shards))
          and (exists (select from msgtx.decision_of(s.producer_id, 0, 0))
               or not exists (select from msgtx.producer p where p.producer_id = s.producer_id and p.epoch = 0))
        limit rows_at_once for update skip locked));
    get diagnostics removed = row_count;
    delete from msgtx.spark_range r
    where r.ctid = any(array(
        select s.ctid from msgtx.spark_range s
        where (exists (select from msgtx.spark_range n where n.query_id = s.query_id and n.batch_id > s.batch_id + 1)
               or exists (select from msgtx.spark_batch b where b.query_id = s.query_id and b.batch_id > s.batch_id)
               or s.recorded_at < oldest and not exists (select from msgtx.spark_batch b where b.query_id = s.query_id))
          and (shards is null or msgtx.shard_of(s.query_id, null) = any(shards))
        limit rows_at_once for update skip locked));
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    delete from msgtx.spark_batch b
    where b.ctid = any(array(
        select s.ctid from msgtx.spark_batch s
        where (select true from msgtx.spark_batch n
               where n.app_id = s.app_id and n.query_id = s.query_id and n.batch_id > s.batch_id limit 1)
          and (shards is null or msgtx.shard_of(s.app_id, null) = any(shards))
        limit rows_at_once for update skip locked));
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    delete from msgtx.spark_floor f
    where f.ctid = any(array(
        select s.ctid from msgtx.spark_floor s
        where ((select true from msgtx.spark_floor n
                where n.app_id = s.app_id and n.of_program = s.of_program and n.decided_below > s.decided_below limit 1)
               or (select true from msgtx.spark_attempt a where a.app_id = s.app_id limit 1) is null)
          and (shards is null or msgtx.shard_of(s.app_id, null) = any(shards))
        limit rows_at_once for update skip locked));
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    next_after := case when removed >= rows_at_once then array[removed] end;
end $$;
