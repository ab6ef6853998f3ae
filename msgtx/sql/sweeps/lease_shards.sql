-- lease_shards(coordinator_id, host, process) renews the lease of a coordinator, or gives it one (id null, or not known any
-- more), and its share of the 50 shards: the living ones divide them evenly. A shard is taken when its owner has let go of
-- it or has no living lease; its coordinator epoch rises in the same statement, and an older one is refused from then on. A
-- lease that lies further in the future than it lasts is over (is_ahead): its coordinator, if it lives, gets another id.
-- Shares differ by one at most, and the oldest coordinators have the larger ones: a newcomer moves only what it gets.
--   lease_ms, look_again_ms   how long the lease lasts; when to call again: at a third of it, when another's ends, or soon,
--                             if others still hold what is this one's share
-- Locks the leases (exclusive). Writes coordinator, coordinator_shard. Flushed when a coordinator or a shard's owner is new:
-- an id or an epoch must not be given out twice. A renewal is not.
-- right: admin of all topics
-- commit: asynchronous
create function msgtx.lease_shards(
    in_coordinator_id bigint, in_host text, in_process int,
    out coordinator_id bigint, out shards int[], out epochs int[], out lease_ms bigint, out look_again_ms bigint,
    out sweep_interval_ms bigint
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    moment timestamptz;
    share bigint;
    held bigint;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    lease_ms := msgtx.setting_value('lease_ms');
    sweep_interval_ms := msgtx.setting_value('sweep_interval_ms');
    ignored := msgtx.lock_leases();
    moment := msgtx.clock();
    update msgtx.coordinator c set lease_until = moment + lease_ms * interval '1 ms'
    where c.coordinator_id = in_coordinator_id returning c.coordinator_id into coordinator_id;
    if not found then
        insert into msgtx.coordinator (host, process, started_at, lease_until)
        values (in_host, in_process, moment, moment + lease_ms * interval '1 ms')
        returning msgtx.coordinator.coordinator_id into coordinator_id;
        ignored := msgtx.flush_at_commit();
    end if;
    delete from msgtx.coordinator c
    where c.lease_until < moment or msgtx.is_ahead(c.lease_until, 2 * lease_ms, moment);
    share := (
        select 50 / count(*) + (
            count(*) filter (where c.coordinator_id < lease_shards.coordinator_id) < 50 % count(*))::int
        from msgtx.coordinator c);

    update msgtx.coordinator_shard s set coordinator_id = null, leased_at = null
    where s.shard in (
        select o.shard from msgtx.coordinator_shard o where o.coordinator_id = lease_shards.coordinator_id
        order by o.shard offset share);
    held := (select count(*) from msgtx.coordinator_shard s where s.coordinator_id = lease_shards.coordinator_id);
    update msgtx.coordinator_shard s
    set coordinator_id = lease_shards.coordinator_id, coordinator_epoch = s.coordinator_epoch + 1, leased_at = moment
    where s.shard in (
        select free.shard from msgtx.coordinator_shard free
        where not exists (select from msgtx.coordinator c where c.coordinator_id = free.coordinator_id)
        order by free.shard limit greatest(share - held, 0));
    if found then
        ignored := msgtx.flush_at_commit();
    end if;

    select coalesce(array_agg(s.shard order by s.shard), '{}'),
           coalesce(array_agg(s.coordinator_epoch order by s.shard), '{}')
    into shards, epochs
    from msgtx.coordinator_shard s where s.coordinator_id = lease_shards.coordinator_id;
    look_again_ms := least(lease_ms / 3, case when cardinality(shards) < share then 200 end, (
        select min(greatest(1, ceil(1000 * extract(epoch from c.lease_until - moment)))) from msgtx.coordinator c
        where c.coordinator_id <> lease_shards.coordinator_id));
end $$;
