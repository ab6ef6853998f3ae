-- expire_holders(partitions, group) aborts overdue transactions that hold readers of these partitions back (I12).
-- Without a group: on each partition the first undecided transaction, where its last stable offset is; if that is
-- aborted, the next one. With a group: the sealed transactions that its newest offsets wait for. → each of them, and
-- whether it is aborted now.
--   kind      of its seal: session, or external, which has no timeout; null without a seal
--   expired   it was overdue, its producer's lock was free, and the caller may write; a hot standby, a read-only session or
--             one above READ COMMITTED only gets the report
-- At most 100 are aborted in a call: a reader that is still held back calls again. One bad row does not stop the rest
-- (P12).
-- Tries producers' locks and never waits. Reads partition_floor, transaction tables, consumer_group, group_offset. Writes
-- transaction_decision. Flushed.
-- right: produce, consume, admin
-- null: kind
-- plan: look-ups, nested loops
create function msgtx.expire_holders(partition_ids int[], group_name text default null)
returns table (
    partition_id int, producer_id bigint, producer_epoch int, transaction_number bigint, kind text, expired boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    may_write constant boolean := current_setting('transaction_read_only') = 'off'  -- on a standby it is on
        and current_setting('transaction_isolation') = 'read committed';
    -- An administrator of a topic sees each group's position in it, and the transactions that hold it back there.
    cans constant text[] := case when group_name is null or msgtx.may_use('group', group_name)
        then '{produce,consume,admin}' else '{admin}' end;
    looked int[] := array(select distinct u from unnest(partition_ids) u);
    again int[];
    holder record;
    ended int := 0;
    ignored boolean;
begin
    if not msgtx.acts_for_owner() then
        if group_name is not null and msgtx.patterns_of_caller('{admin}') = '{}' then
            ignored := msgtx.require_names('group', array[group_name]);
        end if;
        ignored := msgtx.require_rights(cans, partition_ids);
    end if;
    while cardinality(looked) > 0 loop
        again := '{}';
        for holder in
            select h.producer_id, h.producer_epoch, h.transaction_number, h.partition_ids, s.kind,
                   s.kind is distinct from 'external'
                   and (coalesce(msgtx.is_overdue(t.opened_at, t.timeout_ms, t.database_backend, t.seen_at), false)
                        or msgtx.is_deserted(h.producer_id, h.producer_epoch, h.transaction_number)) as overdue
            from (
                select u.producer_id, u.producer_epoch, u.transaction_number,
                       array_agg(u.partition_id order by u.partition_id) as partition_ids
                from (
                    select asked.partition_id, blocking.*
                    from unnest(looked) asked(partition_id)
                    left join lateral msgtx.floor_of(asked.partition_id) floor on true
                    cross join lateral (
                        select tp.producer_id, tp.producer_epoch, tp.transaction_number
                        from msgtx.transaction_partition tp
                        where tp.partition_id = asked.partition_id and tp.first_offset >= coalesce(floor.stable_floor, 0)
                          and not exists (
                              select from msgtx.decision_of(tp.producer_id, tp.producer_epoch, tp.transaction_number))
                        order by tp.first_offset limit 1) blocking
                    where group_name is null
                    union all
                    select asked.partition_id, o.producer_id, o.producer_epoch, o.transaction_number
                    from msgtx.consumer_group g
                    cross join unnest(looked) asked(partition_id)
                    left join lateral msgtx.newest_offset_of(g.group_id, asked.partition_id) newest on true
                    cross join lateral (
                        select o.producer_id, o.producer_epoch, o.transaction_number from msgtx.group_offset o
                        where o.group_id = g.group_id and o.partition_id = asked.partition_id
                          and o.commit_sequence > coalesce(newest.commit_sequence, 0)
                          and exists (select from msgtx.seal_of(o.producer_id, o.producer_epoch, o.transaction_number))
                          and not exists (
                              select from msgtx.decision_of(o.producer_id, o.producer_epoch, o.transaction_number))) o
                    where g.name = group_name) u
                group by u.producer_id, u.producer_epoch, u.transaction_number) h
            left join lateral msgtx.seal_of(h.producer_id, h.producer_epoch, h.transaction_number) s on true
            left join lateral msgtx.transaction_of(h.producer_id, h.producer_epoch, h.transaction_number) t on true
        loop
            expired := false;
            if holder.overdue and may_write and ended < 100 then
                begin
                    expired := msgtx.expire_transaction(
                        holder.producer_id, holder.producer_epoch, holder.transaction_number);
                exception when others then
                    raise warning 'transaction %.%.% could not be expired: %',
                        holder.producer_id, holder.producer_epoch, holder.transaction_number, sqlerrm;
                end;
            end if;
            if expired then
                ended := ended + 1;
                again := again || holder.partition_ids;
            end if;
            return query
            select p, holder.producer_id, holder.producer_epoch, holder.transaction_number, holder.kind, expired
            from unnest(holder.partition_ids) p;
        end loop;
        looked := array(select distinct u from unnest(again) u);
    end loop;
end $$;
