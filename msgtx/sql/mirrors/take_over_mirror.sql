-- take_over_mirror(name, run, run before, …) makes a run the only one of a mirror whose target this is, and → its progress:
-- one row per partition of the source, at least one (then without a topic). The run is a producer and its epoch, which
-- init_producer_id has just raised: so nothing of an older run can be decided any more (I7).
--   previous_…   the caller's own run before; null: this is a new mirror, which takes over from any other
-- Raises MirrorFenced if the row is not of the previous run (another has taken over, or the progress was reset), or if a
-- newer run has initialized the producer. No lock of the producer: advance_mirror holds the row and then takes that one.
-- Writes mirror. Flushed.
-- right: produce
-- null: source, topic, partition, next_offset, topic_identity, row_identity
-- plan: look-ups
create function msgtx.take_over_mirror(
    in_name text, in_producer_id bigint, in_producer_epoch int, previous_producer_id bigint, previous_epoch int,
    in_source_address text, in_client_host text, in_client_process int)
returns table (
    revision bigint, source text, topic text, partition int, next_offset bigint, topic_identity text, row_identity text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    known record;
    found_epoch int;
    ignored boolean := msgtx.refuse_stale_snapshot()
        and (msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]));
begin
    ignored := msgtx.flush_at_commit();
    if previous_producer_id is null then
        insert into msgtx.mirror (
            name, producer_id, producer_epoch, source_address, client_host, client_process, started_at, moved_at, seen_at)
        values (in_name, in_producer_id, in_producer_epoch, in_source_address, in_client_host, in_client_process,
                msgtx.clock(), msgtx.clock(), msgtx.clock())
        on conflict do nothing;
    end if;
    select m.producer_id, m.producer_epoch into known from msgtx.mirror m where m.name = in_name for update;
    if previous_producer_id is not null
        and (known.producer_id = previous_producer_id and known.producer_epoch = previous_epoch) is not true then
        raise exception using errcode = 'MX000', column = 'MirrorFenced', message = format(
            'mirror %s: another one of this name has taken over, or its progress was reset', in_name),
            detail = jsonb_build_object('name', in_name);
    end if;
    select p.epoch into found_epoch from msgtx.producer p where p.producer_id = in_producer_id;
    if found_epoch is distinct from in_producer_epoch then
        raise exception using errcode = 'MX000', column = 'MirrorFenced', message = format(
            'mirror %s: another one of this name takes over', in_name), detail = jsonb_build_object('name', in_name);
    end if;
    update msgtx.mirror m
    set producer_id = in_producer_id, producer_epoch = in_producer_epoch, revision = m.revision + 1,
        source_address = in_source_address, client_host = in_client_host, client_process = in_client_process,
        started_at = case when previous_producer_id is null then msgtx.clock() else m.started_at end, seen_at = msgtx.clock()
    where m.name = in_name;
    return query
    select m.revision, m.source, p.topic_name, p.partition_index, p.next_offset, p.topic_identity, p.row_identity
    from msgtx.mirror m left join msgtx.mirror_place p on p.mirror_name = m.name
    where m.name = in_name order by p.topic_name, p.partition_index;
end $$;
