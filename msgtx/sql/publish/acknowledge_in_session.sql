-- acknowledge_in_session(groups, members, partitions, ranges, answers, reasons, delays) stages answers for records of
-- share groups, as commit_in_session does with offsets. The user's COMMIT writes all of them, or fails.
--   no row          all is staged
--   error 'stale'   this SQL transaction is above READ COMMITTED, and nothing was done: seal instead (P24)
-- Writes staged_commit. The staged answers are flushed.
-- right: consume
-- plan: look-ups
create function msgtx.acknowledge_in_session(
    share_groups text[], share_members bigint[], share_partitions int[], share_firsts bigint[], share_lasts bigint[],
    share_answers text[], share_reasons text[], share_delays int[])
returns table (error text, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', share_partitions)
        and msgtx.require_names('group', share_groups);
    ignored := msgtx.refuse_standby();
    if current_setting('transaction_isolation') <> 'read committed' then
        error := 'stale';
        return next;
        return;
    end if;
    insert into msgtx.staged_commit (
        share_groups, share_members, share_partitions, share_firsts, share_lasts, share_answers, share_reasons, share_delays,
        round)
    values (share_groups, share_members, share_partitions, share_firsts, share_lasts, share_answers, share_reasons,
            share_delays, case when not exists (
                select from msgtx.staged_commit c where c.staged_by = pg_current_xact_id() and c.round is not null)
                    then 0 end);
end $$;
