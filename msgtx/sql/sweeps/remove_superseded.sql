-- remove_superseded(kind, after, most, shards) removes rows with lower numbers than the newest of their key, and all rows of
-- keys that are gone, after looking at `most` keys, and at most 10,000 rows; → how many, and where it came to (null: the
-- end).
--   kind   call, heartbeat: of members; floor: of partitions
-- Passes by rows that are locked. Reads partition, group_member. Deletes from share_call, group_heartbeat, partition_floor.
-- Writes swept through note_swept.
-- plan: look-ups, nested loops, in order
create function msgtx.remove_superseded(
    in_kind text, after bigint, most int, shards int[], out removed int, out next_after bigint
) language plpgsql volatile as $$
declare
    rows_at_once constant int := 10000;  -- in one SQL transaction
    of_all constant bigint := 9223372036854775807;
    late constant int := case in_kind when 'heartbeat' then 20 else 0 end;  -- they may still come, out of their order
    key record;
    low bigint;
    looked_at int := 0;
    removed_now int;
    ignored boolean;
begin
    removed := 0;
    -- From the place of the last sweep on: rows that were removed and may still be seen lie below (swept_below).
    for key in
        select k.key_1 as id, case when case in_kind
                       when 'floor' then (select true from msgtx.partition p where p.partition_id = k.key_1)
                       else (select true from msgtx.group_member m where m.member_number = k.key_1) end
                   then case in_kind
                       when 'call' then (
                           select c.call_number from msgtx.share_call c
                           where c.member_number = k.key_1 order by c.call_number desc limit 1)
                       when 'heartbeat' then (
                           select h.heartbeat_number from msgtx.group_heartbeat h
                           where h.member_number = k.key_1 order by h.heartbeat_number desc limit 1)
                       else (select f.stable_floor from msgtx.floor_of(k.key_1::int) f) end
                   else of_all end as highest
        from msgtx.keys_after(in_kind, after, 0, most) k
    loop
        looked_at := looked_at + 1;
        next_after := key.id;
        low := case when key.highest < of_all then msgtx.swept_below(in_kind, key.id, 0) else -1 end;
        if (low - late < key.highest) is not false and (shards is null or key.id % 50 = any(shards)) then
            begin
                if in_kind = 'call' then
                    delete from msgtx.share_call o where o.ctid = any(array(
                        select s.ctid from msgtx.share_call s
                        where s.member_number = key.id and s.call_number >= low - late and s.call_number < key.highest
                        order by s.call_number limit rows_at_once - removed for update skip locked));
                elsif in_kind = 'heartbeat' then
                    delete from msgtx.group_heartbeat o where o.ctid = any(array(
                        select s.ctid from msgtx.group_heartbeat s
                        where s.member_number = key.id
                          and s.heartbeat_number >= low - late and s.heartbeat_number < key.highest
                        order by s.heartbeat_number limit rows_at_once - removed for update skip locked));
                else
                    delete from msgtx.partition_floor o where o.ctid = any(array(
                        select s.ctid from msgtx.partition_floor s
                        where s.partition_id = key.id and s.stable_floor >= low - late and s.stable_floor < key.highest
                        order by s.stable_floor limit rows_at_once - removed for update skip locked));
                end if;
                get diagnostics removed_now = row_count;
                removed := removed + removed_now;
                ignored := msgtx.note_swept(in_kind, key.id, 0, low, case in_kind
                    when 'call' then (
                        select c.call_number from msgtx.share_call c
                        where c.member_number = key.id and c.call_number >= low order by c.call_number limit 1)
                    when 'heartbeat' then (
                        select h.heartbeat_number from msgtx.group_heartbeat h
                        where h.member_number = key.id and h.heartbeat_number >= low - late
                        order by h.heartbeat_number limit 1)
                    else (
                        select f.stable_floor from msgtx.partition_floor f
                        where f.partition_id = key.id and f.stable_floor >= low order by f.stable_floor limit 1) end);
            exception when others then
                raise warning 'superseded rows (%) could not be removed: %', in_kind, sqlerrm;
            end;
        end if;
        if removed >= rows_at_once then
            next_after := key.id - 1;  -- on with this key
            return;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
