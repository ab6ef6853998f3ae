-- acknowledge_all(receipts, answer, delay, reason) answers for records that receive has returned. The COMMIT of the caller's
-- SQL transaction applies it, or fails; after a rollback it never was.
--   answer   accept: it is done; release: it is delivered again, at once or after the delay (null: the group's back-off);
--            reject: it becomes a dead letter; renew: its lock begins anew with the COMMIT
-- A receipt is of one delivery. Raises InvalidRecordState (MX121) if that is over: the lock has expired, the record was
-- answered for, or delivered again. Looks at once, without a lock; the COMMIT looks again. Of no receipts nothing is done.
-- Reads consumer_group, share_group, partition, share_state. Writes staged_commit.
-- right: consume
-- plan: look-ups, nested loops
create function msgtx.acknowledge_all(
    receipts text[], answer text default 'accept', delay interval default null, reason text default null
) returns void language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most constant int := 10000;
    delay_ms constant bigint := extract(epoch from delay) * 1000;
    moment constant timestamptz := msgtx.clock();
    wrong text;
    asked record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    wrong := case
        when cardinality(receipts) > most then 'receipts'
        when exists (select from unnest(receipts) u
                     where u ~ '^[0-9]{1,9}[.][0-9]{1,9}[.][0-9]{1,18}[.][0-9]{1,18}$' is not true) then 'receipt'
        when answer in ('accept', 'release', 'reject', 'renew') is not true then 'answer'
        when delay is not null and (answer = 'release' and delay_ms between 0 and 2147483647) is not true then 'delay'
        when reason is not null and answer not in ('release', 'reject') then 'reason' end;
    if wrong is not null then
        raise exception using errcode = 'MX042', message = format(
            'msgtx.acknowledge takes receipts of msgtx.receive (at most %s), an answer (accept, release, reject, renew), '
            'with release a delay of up to 24 days, with release and reject a reason; this %s is none', most, wrong),
            detail = jsonb_build_object('name', wrong);
    end if;
    if cardinality(receipts) > 0 is not true then
        return;
    end if;
    select array_agg(c.name) as groups, array_agg(s.member_number) as members, array_agg(r.parts[2]::int) as partitions,
           array_agg(r.parts[3]::bigint) as offsets, array_agg(-r.parts[4]::bigint) as calls,
           max(r.receipt) filter (where s.member_number is null) as stale
    into asked
    from (select u as receipt, string_to_array(u, '.') as parts from unnest(receipts) u) r
    left join lateral (
        select c.group_id, c.name from msgtx.consumer_group c where c.group_id = r.parts[1]::int limit 1) c on true
    left join lateral (select g.* from msgtx.share_group g where g.group_id = c.group_id limit 1) g on true
    left join lateral (
        select h.member_number from msgtx.share_state_of(c.group_id, r.parts[2]::int) v
        cross join lateral unnest(v.spans) h
        where h.status = 'acquired' and h.call_number = -r.parts[4]::bigint
          and r.parts[3]::bigint between h.first_offset and h.last_offset
          and msgtx.is_running(h.locked_until, g.longest_lock_ms, moment)) s on true;
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', asked.partitions)
        and msgtx.require_names('group', asked.groups);
    if asked.stale is not null then
        raise exception using errcode = 'MX121', message = format(
            'receipt %s: its delivery is over: the lock has expired, or the record was answered for; others get it',
            asked.stale),
            detail = jsonb_build_object('name', asked.stale);
    end if;
    insert into msgtx.staged_commit (
        share_groups, share_members, share_partitions, share_firsts, share_lasts, share_answers, share_reasons, share_delays,
        share_calls)
    select asked.groups, asked.members, asked.partitions, asked.offsets, asked.offsets,
           array_fill(answer, array[cardinality(receipts)]), array_fill(reason, array[cardinality(receipts)]),
           array_fill(delay_ms::int, array[cardinality(receipts)]), asked.calls;
    ignored := msgtx.stage_commit();
end $$;
