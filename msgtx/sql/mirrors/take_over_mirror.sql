-- take_over_mirror(name, run_id, is_new, producer, epoch, …) makes a run the only one of a mirror whose target this is, and
-- → its progress: one row per partition of the source, at least one (then without a topic). The caller has just initialized
-- the producer: so nothing that it left undecided, or that an older run did, can be decided any more (I7).
--   is_new   a run that begins takes over from any other. One that continues after a failure does not: raises MirrorFenced
--            if another run has taken over, or the progress was reset. Repeated, it gets the same answer
-- Raises MirrorFenced, too, if a newer run has initialized the producer, or its transactional id is not mirror.NAME:
-- the right to that id is the right to the mirror. It does not lock the producer: advance_mirror locks the row first, and
-- then the producer.
-- Writes mirror. Flushed.
-- right: produce
-- null: source, topic, partition, next_offset, topic_identity, row_identity
-- plan: look-ups
create function msgtx.take_over_mirror(
    in_name text, in_run_id uuid, is_new boolean, in_producer_id bigint, in_producer_epoch int,
    in_source_address text, in_client_host text, in_client_process int)
returns table (
    revision bigint, source text, topic text, partition int, next_offset bigint, topic_identity text, row_identity text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    known_run uuid;
    found_epoch int;
    ignored boolean := msgtx.refuse_stale_snapshot()
        and (msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]));
begin
    ignored := msgtx.flush_at_commit();
    if is_new then
        insert into msgtx.mirror (
            name, run_id, producer_id, producer_epoch, source_address, client_host, client_process, started_at, moved_at,
            seen_at)
        values (in_name, in_run_id, in_producer_id, in_producer_epoch, in_source_address, in_client_host, in_client_process,
                msgtx.clock(), msgtx.clock(), msgtx.clock())
        on conflict do nothing;
    end if;
    select m.run_id into known_run from msgtx.mirror m where m.name = in_name for update;
    if not is_new and known_run is distinct from in_run_id then
        raise exception using errcode = 'MX000', column = 'MirrorFenced', message = format(
            'mirror %s: another one of this name has taken over, or its progress was reset', in_name),
            detail = jsonb_build_object('name', in_name);
    end if;
    select p.epoch into found_epoch from msgtx.producer p
    where p.producer_id = in_producer_id and p.transactional_id = 'mirror.' || in_name;
    if found_epoch is distinct from in_producer_epoch then
        raise exception using errcode = 'MX000', column = 'MirrorFenced', message = format(
            'mirror %s: another one of this name takes over', in_name), detail = jsonb_build_object('name', in_name);
    end if;
    update msgtx.mirror m
    set run_id = in_run_id, producer_id = in_producer_id, producer_epoch = in_producer_epoch, revision = m.revision + 1,
        source_address = in_source_address, client_host = in_client_host, client_process = in_client_process,
        started_at = case when m.run_id <> in_run_id then msgtx.clock() else m.started_at end, seen_at = msgtx.clock(),
        error = null
    where m.name = in_name;
    return query
    select m.revision, m.source, p.topic_name, p.partition_index, p.next_offset, p.topic_identity, p.row_identity
    from msgtx.mirror m left join msgtx.mirror_place p on p.mirror_name = m.name
    where m.name = in_name order by p.topic_name, p.partition_index;
end $$;
