-- decide_sealed(name, deadline, spans, signature) commits a sealed transaction in the user's SQL transaction, together with
-- his rows, at every isolation: it reads nothing but the one row of installation (P23). A decision in between is a conflict
-- of keys, and the user's SQL transaction fails. Past the deadline it is refused: its ABORT might have been purged. So is a
-- transaction prepared for an outside party: it has no deadline. Locks the producer (share: sweeps pass by, init waits,
-- late appends are refused without waiting). It has no limit on waiting of its own: PostgreSQL would roll limit_session's
-- settings back with it, and the rest of this SQL transaction must not wait without a limit. Writes transaction_decision.
-- Flushed.
-- right: produce
create function msgtx.decide_sealed(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, deadline timestamptz,
    partitions int[], first_offsets bigint[], last_offsets bigint[], signature bytea
) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    name text := format('%s.%s.%s', in_producer_id, in_producer_epoch, in_transaction_number);
    ignored boolean;
begin
    if signature is distinct from msgtx.seal_signature(
        in_producer_id, in_producer_epoch, in_transaction_number, deadline, partitions, first_offsets, last_offsets) then
        raise exception using errcode = 'MX000', column = 'IncarnationChanged', message = format(
            'the seal of transaction %s is not of this database: it is another one, or another incarnation', name);
    end if;
    if deadline is null then
        raise exception using errcode = 'MX042', message = format(
            'transaction %s is prepared for an outside party: a session cannot decide it', name),
            detail = jsonb_build_object('reason', 'prepared');
    end if;
    ignored := msgtx.limit_session();
    ignored := msgtx.lock_producer_shared(in_producer_id);
    if deadline < msgtx.clock() then
        raise exception using errcode = 'MX120', message = format(
            'transaction %s was aborted (reason: timeout); it had to be decided until %s', name, deadline),
            detail = jsonb_build_object('reason', 'timeout');
    end if;
    ignored := msgtx.flush_at_commit();
    begin
        insert into msgtx.transaction_decision (
            producer_id, producer_epoch, transaction_number, outcome, decided_at, decided_by,
            partitions, first_offsets, last_offsets)
        values (in_producer_id, in_producer_epoch, in_transaction_number, 'COMMIT', msgtx.clock(), 'client',
                partitions, first_offsets, last_offsets);
    exception when unique_violation then  -- also at an isolation at which the other decision cannot be read
        raise exception using errcode = 'MX120', message = format(
            'transaction %s was decided before this session committed it: it was aborted, or fenced', name);
    end;
    return msgtx.wake_readers(partitions);
end $$;
