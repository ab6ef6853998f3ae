-- list_coordinators(shard) → the shards with their coordinators, all or one: owner, host and process are null where no lease
-- is living. Reads coordinator, coordinator_shard.
-- right: observe of all topics
-- null: owner, host, process, started_at, lease_until
create function msgtx.list_coordinators(in_shard int default null)
returns table (
    shard int, owner bigint, host text, process int, coordinator_epoch int, started_at timestamptz, lease_until timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment constant timestamptz := msgtx.clock();
    lease_ms constant bigint := msgtx.setting_value('lease_ms');
begin
    return query
    select s.shard, c.coordinator_id, c.host, c.process, s.coordinator_epoch, c.started_at, c.lease_until
    from msgtx.coordinator_shard s
    left join msgtx.coordinator c on c.coordinator_id = s.coordinator_id and c.lease_until >= moment
        and not msgtx.is_ahead(c.lease_until, 2 * lease_ms, moment)
    where in_shard is null or s.shard = in_shard
    order by s.shard;
end $$;
