-- remove_superseded_shares(after, most) removes versions of share partitions below the newest, after looking at `most` keys (group and
-- partition), then calls of members below their newest, after looking at as many members; at most 10,000 rows; → how many. What belongs
-- to a group, partition or member that is gone goes, too.
--   in_after, next_after   where the last call came to: 1, group, partition, or 2 and a member; null: from the start, and: this was the end
--   shards, epochs         those of a coordinator; null: a client's call
-- Locks the leases (share); passes by rows that are locked. Reads partition, share_group, group_member. Deletes from share_state,
-- share_parked, share_call. Not flushed by itself.
create function msgtx.remove_superseded_shares(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' set plan_cache_mode = force_generic_plan
set jit = off set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    rows_at_once constant int := 10000;  -- in one SQL transaction
    place constant bigint[] := coalesce(in_after, array[1, -1, -1]);
    newest record;
    looked_at int := 0;
    removed_now int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    if place[1] = 1 then
        for newest in
            with recursive lowest(group_id, partition_id, version) as (
                (select s.group_id, s.partition_id, s.version from msgtx.share_state s
                 where (s.group_id, s.partition_id) > (place[2], place[3])
                 order by s.group_id, s.partition_id, s.version limit 1)
                union all
                select next.group_id, next.partition_id, next.version from lowest n
                cross join lateral (
                    select s.group_id, s.partition_id, s.version from msgtx.share_state s
                    where (s.group_id, s.partition_id) > (n.group_id, n.partition_id)
                    order by s.group_id, s.partition_id, s.version limit 1) next)
            select n.group_id, n.partition_id, n.version as lowest, case
                       when (select true from msgtx.partition p where p.partition_id = n.partition_id)
                            and (select true from msgtx.share_group g where g.group_id = n.group_id) then (
                           select s.version from msgtx.share_state s
                           where s.group_id = n.group_id and s.partition_id = n.partition_id order by s.version desc limit 1)
                       else 9223372036854775807 end as highest
            from lowest n limit most
        loop
            looked_at := looked_at + 1;
            if newest.lowest < newest.highest and (shards is null or newest.group_id % 50 = any(shards)) then
                begin
                    if newest.highest = 9223372036854775807 then
                        delete from msgtx.share_parked o
                        where o.ctid = any(array(
                            select p.ctid from msgtx.share_parked p
                            where p.group_id = newest.group_id and p.partition_id = newest.partition_id
                            order by p.first_offset limit rows_at_once - removed for update skip locked));
                        get diagnostics removed_now = row_count;
                        removed := removed + removed_now;
                    end if;
                    delete from msgtx.share_state o
                    where o.ctid = any(array(
                        select s.ctid from msgtx.share_state s
                        where s.group_id = newest.group_id and s.partition_id = newest.partition_id
                          and s.version < newest.highest
                        order by s.version limit rows_at_once - removed for update skip locked));
                    get diagnostics removed_now = row_count;
                    removed := removed + removed_now;
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
        with recursive lowest(member_number, call_number) as (
            (select c.member_number, c.call_number from msgtx.share_call c
             where c.member_number > place[2] order by c.member_number, c.call_number limit 1)
            union all
            select next.member_number, next.call_number from lowest n
            cross join lateral (
                select c.member_number, c.call_number from msgtx.share_call c
                where c.member_number > n.member_number order by c.member_number, c.call_number limit 1) next)
        select n.member_number, n.call_number as lowest, case
                   when (select true from msgtx.group_member m where m.member_number = n.member_number) then (
                       select c.call_number from msgtx.share_call c
                       where c.member_number = n.member_number order by c.call_number desc limit 1)
                   else 9223372036854775807 end as highest
        from lowest n limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[2, newest.member_number];
        if newest.lowest < newest.highest and (shards is null or newest.member_number % 50 = any(shards)) then
            begin
                delete from msgtx.share_call o
                where o.ctid = any(array(
                    select c.ctid from msgtx.share_call c
                    where c.member_number = newest.member_number and c.call_number < newest.highest
                    order by c.call_number limit rows_at_once - removed for update skip locked));
                get diagnostics removed_now = row_count;
                removed := removed + removed_now;
            exception when others then
                raise warning 'calls of member % could not be removed: %', newest.member_number, sqlerrm;
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
