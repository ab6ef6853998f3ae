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
    joined constant text := array_to_string(receipts, ',', '');
    wrong text;
    asked record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    wrong := case
        when cardinality(receipts) > most then 'receipts'
        -- One match for all of them, since each takes 1.5 µs; a text of 256 MB is more than a regular expression takes.
        when length(joined) > 58 * cardinality(receipts) then 'receipt'
        when cardinality(receipts) > 0 and (
            joined || ',' !~ '^([0-9]{1,9}[.][0-9]{1,9}[.][0-9]{1,18}[.][0-9]{1,18},)*$'
            or cardinality(string_to_array(joined, ',')) <> cardinality(receipts)) then 'receipt'
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
    -- Receipts of one delivery whose offsets follow each other are one range.
    select array_agg(c.name) as groups, array_agg(s.member_number) as members, array_agg(r.partition_id) as partitions,
           array_agg(r.first_offset) as firsts, array_agg(r.last_offset) as lasts, array_agg(r.call_number) as calls,
           max(format('%s.%s.%s.%s', r.group_id, r.partition_id, lower(s.missing), -r.call_number))
               filter (where not isempty(s.missing)) as stale
    into asked
    from (
        select d.group_id, d.partition_id, d.call_number, min(d.record_offset) as first_offset,
               max(d.record_offset) as last_offset
        from (
            select u.*, u.record_offset - row_number() over (
                       partition by u.group_id, u.partition_id, u.call_number order by u.record_offset) as gaps_before
            from (select split_part(u, '.', 1)::int as group_id, split_part(u, '.', 2)::int as partition_id,
                         split_part(u, '.', 3)::bigint as record_offset, -split_part(u, '.', 4)::bigint as call_number
                  from unnest(receipts) u offset 0) u) d
        group by d.group_id, d.partition_id, d.call_number, d.gaps_before) r
    left join lateral (
        select c.group_id, c.name from msgtx.consumer_group c where c.group_id = r.group_id limit 1) c on true
    left join lateral (select g.* from msgtx.share_group g where g.group_id = c.group_id limit 1) g on true
    cross join lateral (
        select min(h.member_number) as member_number,
               int8multirange(int8range(r.first_offset, r.last_offset, '[]'))
                   - coalesce(range_agg(int8range(h.first_offset, h.last_offset, '[]')), '{}') as missing
        from msgtx.share_state_of(c.group_id, r.partition_id) v
        cross join lateral unnest(v.spans) h
        where h.status = 'acquired' and h.call_number = r.call_number
          and msgtx.is_running(h.locked_until, g.longest_lock_ms, moment)) s;
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
    select asked.groups, asked.members, asked.partitions, asked.firsts, asked.lasts, array_fill(answer, ranges),
           array_fill(reason, ranges), array_fill(delay_ms::int, ranges), asked.calls
    from (select array[cardinality(asked.calls)]) a(ranges);
    ignored := msgtx.stage_commit();
end $$;
