-- require_leases(shards, epochs), of a sweep, lets a coordinator act for its shards to the end of the SQL transaction;
-- raises CoordinatorFenced if one of them has a newer coordinator epoch, NotCoordinator if it has no owner.
--   shards, epochs         null: the caller acts for no coordinator (clients, cron), and for all shards
--   in_after, next_after   of every sweep: where its last call came to; null: from the start, and: this was the end
-- Locks the leases (share). Reads coordinator_shard.
create function msgtx.require_leases(shards int[], epochs int[]) returns boolean language plpgsql volatile as $$
declare
    lost record;
    ignored boolean;
begin
    if shards is null then
        return true;
    end if;
    ignored := msgtx.lock_leases_shared();
    select asked.shard, asked.epoch, s.coordinator_epoch into lost
    from unnest(shards, epochs) asked(shard, epoch)
    left join msgtx.coordinator_shard s on s.shard = asked.shard
    where s.coordinator_epoch is distinct from asked.epoch or s.coordinator_id is null
    order by s.coordinator_epoch > asked.epoch desc nulls last limit 1;
    if found then
        raise exception using errcode = case when lost.coordinator_epoch > lost.epoch then 'MX052' else 'MX016' end,
            message = format('shard %s is not led at coordinator epoch %s (any more); its epoch is %s',
                             lost.shard, lost.epoch, lost.coordinator_epoch);
    end if;
    return true;
end $$;
