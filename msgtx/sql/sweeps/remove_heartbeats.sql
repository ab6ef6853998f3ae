-- remove_heartbeats(after, most) removes heartbeats below the newest of their member, and all of members that are gone,
-- after looking at `most` members, and at most 10,000 rows; → how many.
--   in_after, next_after   where the last call came to: member number; null: from the start, and: this was the end
--   shards, epochs         those of a coordinator; null: all
-- Locks the leases (share); passes by rows that are locked. Reads group_member. Deletes from group_heartbeat.
-- Writes swept through note_swept. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops
create function msgtx.remove_heartbeats(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    late constant int := 20;  -- numbers below the newest that may still come, out of their order
    newest record;
    low bigint;
    looked_at int := 0;
    rows_at_once constant int := 10000;  -- in one SQL transaction
    removed_now int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    -- As in remove_superseded_floors.
    for newest in
        with recursive keys(key_1) as (
            (select n.key_1 from msgtx.next_key('heartbeat', coalesce(in_after[1], -1)) n)
            union all
            select n.key_1 from keys k cross join lateral msgtx.next_key('heartbeat', k.key_1) n)
        select k.key_1 as member_number, case
                   when (select true from msgtx.group_member m where m.member_number = k.key_1) then top.heartbeat_number
                   else 9223372036854775807 end as highest
        from keys k
        left join lateral (
            select h.heartbeat_number from msgtx.group_heartbeat h
            where h.member_number = k.key_1 order by h.heartbeat_number desc limit 1) top on true
        limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[newest.member_number];
        low := case when newest.highest < 9223372036854775807 then msgtx.swept_below('heartbeat', newest.member_number, 0)
            else -1 end;
        if (low - late < newest.highest) is not false and (shards is null or newest.member_number % 50 = any(shards)) then
            begin
                delete from msgtx.group_heartbeat h
                where h.ctid = any(array(
                    select s.ctid from msgtx.group_heartbeat s
                    where s.member_number = newest.member_number and s.heartbeat_number >= low - late
                      and s.heartbeat_number < newest.highest
                    order by s.heartbeat_number limit rows_at_once - removed for update skip locked));
                get diagnostics removed_now = row_count;
                removed := removed + removed_now;
                if newest.highest < 9223372036854775807 then
                    ignored := msgtx.note_swept('heartbeat', newest.member_number, 0, low, (
                        select s.heartbeat_number from msgtx.group_heartbeat s
                        where s.member_number = newest.member_number and s.heartbeat_number >= low - late
                        order by s.heartbeat_number limit 1));
                else
                    ignored := msgtx.forget_swept('heartbeat', newest.member_number, 0);
                end if;
            exception when others then
                raise warning 'heartbeats of a member could not be removed: %', sqlerrm;
            end;
        end if;
        if removed >= rows_at_once then
            next_after := array[newest.member_number - 1];  -- on with this member
            return;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
