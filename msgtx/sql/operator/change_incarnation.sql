-- change_incarnation() makes this database another one for every client, snapshot and token, after a failover to a server
-- that had not received everything, or after a restore. Ids are not given out again: each sequence skips more than can have
-- been lost; the coordinator epoch of every shard rises far, and no coordinator leads it. → the new incarnation.
-- Locks the leases (exclusive), and through skip_ahead. Writes installation, coordinator, coordinator_shard. Flushed.
-- right: owner
create function msgtx.change_incarnation() returns uuid language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    changed uuid;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_leases();
    ignored := msgtx.flush_at_commit();
    update msgtx.installation set incarnation = gen_random_uuid() returning incarnation into changed;
    perform msgtx.skip_ahead();
    ignored := msgtx.note_place();
    update msgtx.coordinator_shard set coordinator_id = null, leased_at = null,
        coordinator_epoch = coordinator_epoch + 1000000;
    delete from msgtx.coordinator;
    return changed;
end $$;
