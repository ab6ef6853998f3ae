-- why_batch_conflicts(app_id, query_id, batch_id, run_id, accepted) → error and detail if a batch that was committed before
-- cannot simply be skipped; null: it can. A stream whose batch lies before the newest committed one has an old checkpoint:
-- Spark repeats no other batch than the last one. Reads spark_batch, transaction_decision.
create function msgtx.why_batch_conflicts(
    in_app_id text, in_query_id text, in_batch_id bigint, in_run_id text, accepted bigint[], out error text, out detail text
) language plpgsql volatile as $$
declare
    newest constant bigint := msgtx.last_batch(in_app_id, in_query_id);
begin
    if in_query_id <> '' and newest > in_batch_id then
        error := 'BatchConflict: checkpoint';
        detail := format(
            'application %s has committed batch %s of query %s, which is at batch %s: the checkpoint fell behind;'
            ' restore the newest one, or start with a new one from the offsets of a group',
                         in_app_id, newest, in_query_id, in_batch_id);
    elsif in_run_id <> '' and exists (
        select from msgtx.spark_batch b
        where b.app_id = in_app_id and b.query_id = in_query_id and b.batch_id = in_batch_id and b.run_id = in_run_id)
       and not exists (
        select from msgtx.transaction_decision d
        where d.producer_id = any(accepted) and d.producer_epoch = 0 and d.transaction_number = 0
          and d.outcome = 'COMMIT') then
        error := 'BatchConflict: run';
        detail := format(
            'batch %s of application %s was written before in this run of the query: each write of one batch needs an'
            ' application of its own (app_id, txnAppId)', in_batch_id, in_app_id);
    end if;
end $$;
