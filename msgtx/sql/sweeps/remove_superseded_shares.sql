-- remove_superseded_shares(after, most) removes versions of share partitions below the newest, after looking at `most` keys
-- (group and partition), then calls of members below their newest, after looking at as many members; at most 10,000 rows; →
-- how many. Rows of removed groups, partitions and members go, too, and parked records that are gone from the log.
--   in_after, next_after   where the last call came to: 1, group, partition, or 2 and a member; null: from the start, and:
--                          this was the end
-- Locks the leases (share); tries the locks of share partitions on which something is parked; passes by rows that are
-- locked. Reads partition, share_group, group_member. Deletes from share_state, share_parked, share_call. Writes
-- share_state; swept through note_swept. Not flushed by itself.
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
    -- As in remove_superseded.
    if place[1] = 1 then
        for newest in
            select k.key_1::int as group_id, k.key_2::int as partition_id, case
                       when (select true from msgtx.partition p where p.partition_id = k.key_2)
                            and (select true from msgtx.share_group g where g.group_id = k.key_1) then top.version
                       else most_of_all end as highest
            from msgtx.keys_after('state', place[2], place[3], most) k
            left join lateral msgtx.share_state_of(k.key_1::int, k.key_2::int) top on true
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
                            from msgtx.share_state_of(newest.group_id, newest.partition_id) s;
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
                    ignored := msgtx.note_swept('state', newest.group_id, newest.partition_id, low, (
                        select s.version from msgtx.share_state s
                        where s.group_id = newest.group_id and s.partition_id = newest.partition_id and s.version >= low
                        order by s.version limit 1));
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

    select r.removed, case when r.next_after is not null then array[2, r.next_after] end into removed, next_after
    from msgtx.remove_superseded('call', place[2], most, shards) r;
end $$;
