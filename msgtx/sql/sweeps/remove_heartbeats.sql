-- remove_heartbeats(after, most) removes heartbeats below the newest of their member, and all of members that are gone
-- (remove_superseded); → how many.
-- Locks the leases (share); passes by rows that are locked. Deletes from group_heartbeat, through remove_superseded. Not
-- flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
create function msgtx.remove_heartbeats(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.refuse_stale_snapshot() and msgtx.require_leases(shards, epochs);
begin
    select r.removed, case when r.next_after is not null then array[r.next_after] end into removed, next_after
    from msgtx.remove_superseded('heartbeat', coalesce(in_after[1], -1), most, shards) r;
end $$;
