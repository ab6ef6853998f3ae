-- release_shards(coordinator_id) ends the lease of a coordinator that stops: its shards are free at once.
-- Locks the leases (exclusive). Writes coordinator, coordinator_shard. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
create function msgtx.release_shards(in_coordinator_id bigint) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.lock_leases();
    update msgtx.coordinator_shard s set coordinator_id = null, leased_at = null where s.coordinator_id = in_coordinator_id;
    delete from msgtx.coordinator c where c.coordinator_id = in_coordinator_id;
    return found;
end $$;
