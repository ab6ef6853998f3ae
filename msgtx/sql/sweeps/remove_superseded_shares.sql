-- remove_superseded_shares(after, most) removes versions of share partitions below the newest, after looking at `most` keys
-- (group and partition), then calls of members below their newest, after looking at as many members; at most 10,000 rows; →
-- how many. Rows of a group, partition or member that is gone go, too, and parked records that are gone from the log.
--   in_after, next_after   where the last call came to: 1, group, partition, or 2 and a member; null: from the start, and:
--                          this was the end
--   shards, epochs         those of a coordinator; null: a client's call
-- Locks the leases (share); tries the locks of share partitions on which something is parked; passes by rows that are
-- locked. Reads partition, share_group, group_member. Deletes from share_state, share_parked, share_call. Writes
-- share_state; swept through note_swept. Not flushed by itself.
-- long: its three sweeps share their limits
-- right: consume, admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops
create function msgtx.remove_superseded_shares(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    rows_at_once constant int := 10000;  -- in one SQL transaction
    rows_dropped constant int := 1000;  -- parked ones that it looks at, of each share partition
    most_of_all constant bigint := 9223372036854775807;
    place constant bigint[] := coalesce(in_after, array[1, -1, -1]);
    newest record;
    low bigint;
    parked_left boolean;
    gone record;
    looked_at int := 0;
    removed_now int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    -- As in remove_superseded_floors.
    if place[1] = 1 then
        for newest in
            with recursive keys(key_1, key_2) as (
                (select n.key_1, n.key_2 from msgtx.next_shares(place[2], place[3]) n)
                union all
                select n.key_1, n.key_2 from keys k cross join lateral msgtx.next_shares(k.key_1, k.key_2) n)
            select k.key_1::int as group_id, k.key_2::int as partition_id, case
                       when (select true from msgtx.partition p where p.partition_id = k.key_2)
                            and (select true from msgtx.share_group g where g.group_id = k.key_1) then top.version
                       else most_of_all end as highest
            from keys k
            left join lateral (
                select s.version from msgtx.share_state s
                where s.group_id = k.key_1 and s.partition_id = k.key_2 order by s.version desc limit 1) top on true
            limit most
        loop
            looked_at := looked_at + 1;
            low := case when newest.highest < most_of_all
                then msgtx.swept_below('state', newest.group_id, newest.partition_id) else -1 end;
            if shards is null or newest.group_id % 50 = any(shards) then
                begin
                    parked_left := exists (
                        select from msgtx.share_parked p
                        where p.group_id = newest.group_id and p.partition_id = newest.partition_id);
                    if parked_left and newest.highest = most_of_all then
                        delete from msgtx.share_parked o
                        where o.ctid = any(array(
                            select p.ctid from msgtx.share_parked p
                            where p.group_id = newest.group_id and p.partition_id = newest.partition_id
                            order by p.first_offset limit rows_at_once - removed for update skip locked));
                        get diagnostics removed_now = row_count;
                        removed := removed + removed_now;
                        parked_left := exists (
                            select from msgtx.share_parked p
                            where p.group_id = newest.group_id and p.partition_id = newest.partition_id);
                    elsif parked_left and msgtx.try_lock_share_partition(newest.group_id, newest.partition_id) then
                        select d.* into gone
                        from msgtx.drop_removed(newest.group_id, newest.partition_id, rows_dropped, true) d;
                        removed := removed + gone.dropped;
                        if gone.key_hashes <> '{}' then
                            insert into msgtx.share_state (
                                group_id, partition_id, version, next_offset, next_token, spans, next_due, waiting_keys)
                            select s.group_id, s.partition_id, s.version + 1, s.next_offset, s.next_token, s.spans,
                                s.next_due, s.waiting_keys || array(select k from unnest(gone.key_hashes) k
                                       where k <> all (s.waiting_keys))
                            from msgtx.share_state s
                            where s.group_id = newest.group_id and s.partition_id = newest.partition_id
                            order by s.version desc limit 1;
                        end if;
                    end if;
                    if not parked_left or newest.highest < most_of_all then  -- what is parked is found by the states
                        delete from msgtx.share_state o
                        where o.ctid = any(array(
                            select s.ctid from msgtx.share_state s
                            where s.group_id = newest.group_id and s.partition_id = newest.partition_id
                              and s.version >= low and s.version < newest.highest
                            order by s.version limit rows_at_once - removed for update skip locked));
                        get diagnostics removed_now = row_count;
                        removed := removed + removed_now;
                    end if;
                    if newest.highest < most_of_all then
                        ignored := msgtx.note_swept('state', newest.group_id, newest.partition_id, low, (
                            select s.version from msgtx.share_state s
                            where s.group_id = newest.group_id and s.partition_id = newest.partition_id and s.version >= low
                            order by s.version limit 1));
                    else
                        ignored := msgtx.forget_swept('state', newest.group_id, newest.partition_id);
                    end if;
                exception when others then
                    raise warning 'share group % on partition %: old versions could not be removed: %',
                        newest.group_id, newest.partition_id, sqlerrm;
                end;
            end if;
            if removed >= rows_at_once then
                next_after := array[1, newest.group_id, newest.partition_id - 1];  -- on with this key
                return;
            end if;
            next_after := array[1, newest.group_id, newest.partition_id];
        end loop;
        if looked_at < most then
            next_after := array[2, -1];
        end if;
        return;
    end if;

    for newest in
        with recursive keys(key_1) as (
            (select n.key_1 from msgtx.next_key('call', place[2]) n)
            union all
            select n.key_1 from keys k cross join lateral msgtx.next_key('call', k.key_1) n)
        select k.key_1 as member_number, case
                   when (select true from msgtx.group_member m where m.member_number = k.key_1) then top.call_number
                   else most_of_all end as highest
        from keys k
        left join lateral (
            select c.call_number from msgtx.share_call c
            where c.member_number = k.key_1 order by c.call_number desc limit 1) top on true
        limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[2, newest.member_number];
        low := case when newest.highest < most_of_all then msgtx.swept_below('call', newest.member_number, 0) else -1 end;
        if (low < newest.highest) is not false and (shards is null or newest.member_number % 50 = any(shards)) then
            begin
                delete from msgtx.share_call o
                where o.ctid = any(array(
                    select c.ctid from msgtx.share_call c
                    where c.member_number = newest.member_number and c.call_number >= low and c.call_number < newest.highest
                    order by c.call_number limit rows_at_once - removed for update skip locked));
                get diagnostics removed_now = row_count;
                removed := removed + removed_now;
                if newest.highest < most_of_all then
                    ignored := msgtx.note_swept('call', newest.member_number, 0, low, (
                        select c.call_number from msgtx.share_call c
                        where c.member_number = newest.member_number and c.call_number >= low order by c.call_number
                            limit 1));
                else
                    ignored := msgtx.forget_swept('call', newest.member_number, 0);
                end if;
            exception when others then
                raise warning 'calls of a member could not be removed: %', sqlerrm;
            end;
        end if;
        if removed >= rows_at_once then
            next_after := array[2, newest.member_number - 1];  -- on with this member
            return;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
