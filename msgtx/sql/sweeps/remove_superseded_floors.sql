-- remove_superseded_floors(after, most) removes floors below the newest of their partition, after looking at `most`
-- partitions, and at most 10,000 rows; → how many. A floor that was raised while its topic was being deleted goes, too.
--   in_after, next_after   where the last call came to: partition; null: from the start, and: this was the end
--   shards, epochs         those of a coordinator; null: all
-- Locks the leases (share); passes by rows that are locked. Reads partition. Deletes from partition_floor.
-- Writes swept through note_swept. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops
create function msgtx.remove_superseded_floors(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    newest record;
    low bigint;
    looked_at int := 0;
    rows_at_once constant int := 10000;  -- in one SQL transaction
    removed_now int;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    -- From the place of the last sweep on: rows that were removed and may still be seen lie below (swept_below).
    for newest in
        with recursive keys(key_1) as (
            (select n.key_1 from msgtx.next_key('floor', coalesce(in_after[1], -1)) n)
            union all
            select n.key_1 from keys k cross join lateral msgtx.next_key('floor', k.key_1) n)
        select k.key_1::int as partition_id, case
                   when (select true from msgtx.partition p where p.partition_id = k.key_1) then top.stable_floor
                   else 9223372036854775807 end as highest
        from keys k
        left join lateral (
            select f.stable_floor from msgtx.partition_floor f
            where f.partition_id = k.key_1 order by f.stable_floor desc limit 1) top on true
        limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[newest.partition_id];
        low := case when newest.highest < 9223372036854775807 then msgtx.swept_below('floor', newest.partition_id, 0)
            else -1 end;
        if (low < newest.highest) is not false and (shards is null or newest.partition_id % 50 = any(shards)) then
            begin
                delete from msgtx.partition_floor f
                where f.ctid = any(array(
                    select s.ctid from msgtx.partition_floor s
                    where s.partition_id = newest.partition_id and s.stable_floor >= low and s.stable_floor < newest.highest
                    order by s.stable_floor limit rows_at_once - removed for update skip locked));
                get diagnostics removed_now = row_count;
                removed := removed + removed_now;
                if newest.highest < 9223372036854775807 then
                    ignored := msgtx.note_swept('floor', newest.partition_id, 0, low, (
                        select s.stable_floor from msgtx.partition_floor s
                        where s.partition_id = newest.partition_id and s.stable_floor >= low order by s.stable_floor
                            limit 1));
                else
                    ignored := msgtx.forget_swept('floor', newest.partition_id, 0);
                end if;
            exception when others then
                raise warning 'floors of partition % could not be removed: %', newest.partition_id, sqlerrm;
            end;
        end if;
        if removed >= rows_at_once then
            next_after := array[newest.partition_id - 1];  -- on with this partition
            return;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
