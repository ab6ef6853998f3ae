-- advance_mirror(name, run, revision, source, places, …) moves the progress of a mirror, in the SQL transaction that decides
-- the records up to there: both or neither (I6) → the new revision. It compares before it sets. Raises MirrorFenced if the
-- mirror is of another run, or its progress is not the one that the caller continues.
--   source_…   the partitions of the source whose place changes: no topics of this database, so no right to them is asked
--   lag_…       what the source had behind them
-- Locks the mirror's row. Writes mirror, mirror_place. Flushed.
-- right: produce
-- plan: look-ups
create function msgtx.advance_mirror(
    in_name text, in_producer_id bigint, in_producer_epoch int, in_revision bigint, in_source text,
    source_names text[], indexes int[], offsets bigint[], name_identities text[], row_identities text[],
    in_records bigint, in_lag_records bigint, in_lag_ms bigint)
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    advanced bigint;
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]);
begin
    update msgtx.mirror m
    set revision = m.revision + 1, source = in_source, moved_at = msgtx.clock(), seen_at = msgtx.clock(),
        records = m.records + in_records, lag_records = in_lag_records, lag_ms = in_lag_ms,
        error = null
    where m.name = in_name and m.producer_id = in_producer_id and m.producer_epoch = in_producer_epoch
        and m.revision = in_revision
    returning m.revision into advanced;
    if advanced is null then
        raise exception using errcode = 'MX000', column = 'MirrorFenced', message = format(
            'mirror %s: another one of this name has taken over, or its progress was reset', in_name),
            detail = jsonb_build_object('name', in_name);
    end if;
    insert into msgtx.mirror_place as p (
        mirror_name, topic_name, partition_index, next_offset, topic_identity, row_identity)
    select in_name, u.* from unnest(source_names, indexes, offsets, name_identities, row_identities) u
    on conflict (mirror_name, topic_name, partition_index) do update
    set next_offset = excluded.next_offset, topic_identity = excluded.topic_identity, row_identity = excluded.row_identity;
    ignored := msgtx.flush_at_commit();
    return advanced;
end $$;
