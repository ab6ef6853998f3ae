-- find_coordinator(transactional_id) → its shard and the shard's leader: owner, host and process are null without a
-- living lease.
-- Reads coordinator, coordinator_shard.
-- right: observe of all topics
-- null: owner, host, process, started_at, lease_until
create function msgtx.find_coordinator(in_transactional_id text)
returns table (
    shard int, owner bigint, host text, process int, coordinator_epoch int, started_at timestamptz, lease_until timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(in_transactional_id, '') = '' then
        raise exception using errcode = 'MX042', message = 'a transactional id cannot be empty',
            detail = jsonb_build_object('name', 'transactional_id', 'given', '');
    end if;
    return query select l.* from msgtx.list_coordinators(msgtx.shard_of(in_transactional_id, null)) l;
end $$;
