-- raise_spark_floor(app_id, of_program) notes the first attempt of an application that may be undecided, so that a
-- batch's cost does not grow with past attempts; a program's batches have a floor of their own. Its caller holds the
-- application's lock: an attempt that comes later has a higher number. Reads, through recent_attempts, spark_attempt and
-- spark_floor; producer, transaction_decision. Writes spark_floor. Not flushed by itself.
-- plan: look-ups, nested loops
create function msgtx.raise_spark_floor(in_app_id text, in_of_program boolean) returns boolean language plpgsql volatile
as $$
declare
    raised bigint;
begin
    raised := coalesce(
        (select a.producer_id & 1099511627775 from msgtx.recent_attempts(in_app_id, in_of_program) a
         where not exists (select from msgtx.decision_of(a.producer_id, 0, 0))
           and (select p.epoch = 0 from msgtx.producer p where p.producer_id = a.producer_id)
         limit 1),
        (select max(a.producer_id & 1099511627775) + 1 from msgtx.recent_attempts(in_app_id, in_of_program) a));
    insert into msgtx.spark_floor (app_id, of_program, decided_below)
    select in_app_id, in_of_program, raised where raised is not null
    on conflict on constraint spark_floor_pkey do nothing;
    return found;
end $$;
