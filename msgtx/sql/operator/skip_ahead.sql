-- skip_ahead(only_if_moved) makes each sequence skip all numbers that the tables hold, and more than another server can
-- have given out besides, and notes the place, see has_moved. Locks the installation's row, so that no sequence ever goes
-- back. only_if_moved: of many clients that connect at once, one skips; another waits for the lock for a second, then
-- raises if a sequence is behind. Writes installation.
create function msgtx.skip_ahead(only_if_moved boolean default false) returns void
language plpgsql volatile set lock_timeout = '1s' as $$
begin
    perform from msgtx.installation i for update;
    if only_if_moved and not msgtx.has_moved() then
        return;
    end if;
    perform setval(q.seqrelid::regclass, least(q.seqmax, greatest(s.next_number, s.stored + 1)
        + case when q.seqtypid = 'int'::regtype then 1000000 else 1000000000 end))  -- of 32 bits: 2,000 moves
    from msgtx.sequences() s
    join pg_sequence q on q.seqrelid = to_regclass(format('msgtx.%I', s.sequence_name));
    update msgtx.installation set sequences_system = c.system_identifier,
        sequences_database = (select d.oid from pg_database d where d.datname = current_database())
    from pg_control_system() c;
exception
    when insufficient_privilege or feature_not_supported then
        null;  -- the server does not say where it is; the sequences have skipped
    when lock_not_available then
        -- Another SQL transaction holds the lock. Sequences skip at once: if one is still behind, it has not done it.
        if not only_if_moved or exists (select from msgtx.sequences() s where s.is_behind) then
            raise;
        end if;
end $$;
