-- commit_in_session(batches, offsets) stages consumer offsets, and records without a producer, which the user's COMMIT
-- writes as commit_offsets and append do. Trigger staged_at_commit writes them, together with the records staged by
-- msgtx.publish, so that all partitions are locked in one order, after the user's own deferred constraints. A refusal
-- then fails the COMMIT (append_staged). Several calls are written in their order.
--   no row          all is staged
--   error 'stale'   this SQL transaction is above READ COMMITTED, and nothing was done: seal instead (P24, P39)
-- Writes staged_commit. The staged rows are flushed.
-- right: produce, consume
-- plan: look-ups
create function msgtx.commit_in_session(
    batches msgtx.batch[] default '{}', group_names text[] default '{}', offset_partitions int[] default '{}',
    offsets bigint[] default '{}', metadata text[] default '{}', member_ids text[] default '{}',
    generations int[] default '{}', read_identities text[] default '{}', instance_ids text[] default '{}')
returns table (error text, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    ignored constant boolean := msgtx.refuse_standby();
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        error := 'stale';
        return next;
        return;
    end if;
    -- Its first row fires the trigger, as that of stage_commit does.
    insert into msgtx.staged_commit (
        batches, group_names, offset_partitions, offsets, metadata, member_ids, generations, read_identities, instance_ids,
            round)
    values (batches, group_names, offset_partitions, offsets, metadata, member_ids, generations, read_identities,
        instance_ids, case when not exists (
                select from msgtx.staged_commit c where c.staged_by = pg_current_xact_id() and c.round is not null)
                    then 0 end);
end $$;
