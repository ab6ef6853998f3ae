-- bury_dead_shares(after, most) writes the dead letters that no member has written: of records at their delivery limit,
-- where no member asks any more; and of records rejected in a transaction. It looks at `most` share partitions, and writes
-- at most 500 letters or 8 MiB; → how many. One bad row does not stop the rest (P12).
-- Locks the leases (share); tries the locks of share partitions and of partitions of dead letters, and never waits. Reads
-- share_state, share_group, group_member, group_heartbeat. Writes through settle_share_partition share_state, share_parked
-- and dead letters. Flushed.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.bury_dead_shares(
    in_after bigint[] default null, most int default 250, shards int[] default null, epochs int[] default null,
    out buried int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    place constant bigint[] := coalesce(in_after, array[-1, -1]);
    moment constant timestamptz := msgtx.clock();
    waiting record;
    looked_at int := 0;
    letters int := 500;  -- dead letters that a call writes, and their bytes
    letter_bytes bigint := 8388608;
    written record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    buried := 0;
    ignored := msgtx.require_leases(shards, epochs);
    for waiting in
        select k.key_1::int as group_id, k.key_2::int as partition_id, exists (
                   select from unnest(n.spans) u
                   where u.status = 'rejected' or u.delivery_count >= g.delivery_count_limit and case u.status
                       when 'available' then true
                       when 'acquired' then not msgtx.is_running(u.locked_until, g.longest_lock_ms, moment) or not exists (
                           select from msgtx.session_of(u.member_number, moment) o where not o.is_over)
                       else false end) as has_dead
        from msgtx.keys_after('state', place[1], place[2], most) k
        left join lateral msgtx.share_state_of(k.key_1::int, k.key_2::int) n on true
        left join lateral (
            select s.delivery_count_limit, s.longest_lock_ms from msgtx.share_group s where s.group_id = k.key_1 limit 1) g
                on true
    loop
        exit when letters <= 0 or letter_bytes <= 0;
        looked_at := looked_at + 1;
        next_after := array[waiting.group_id, waiting.partition_id];
        continue when not waiting.has_dead or shards is not null and waiting.group_id % 50 <> all (shards);
        begin
            if msgtx.try_lock_share_partition(waiting.group_id, waiting.partition_id) then
                written := msgtx.settle_share_partition(waiting.group_id, waiting.partition_id, letters, letter_bytes);
                if written.buried > 0 then
                    ignored := msgtx.flush_at_commit();
                    buried := buried + written.buried;
                    letters := letters - written.buried;
                    letter_bytes := letter_bytes - written.bytes;
                    if written.is_left then
                        next_after := array[waiting.group_id, waiting.partition_id - 1];  -- on with this one
                        return;
                    end if;
                end if;
            end if;
        exception when others then
            raise warning 'share group % on partition %: dead letters could not be written: %', waiting.group_id,
                waiting.partition_id, sqlerrm;
        end;
    end loop;
    if looked_at < most and letters > 0 and letter_bytes > 0 then
        next_after := null;
    end if;
end $$;
