-- acquire_records_together(group, members, calls, partitions, mosts, …) is a call of acquire_records for each of these members, which
-- share one process, a connection and a flush: in one new state of one partition. Only if it is the usual case for all
-- (acquire_usually). Where the first partition has nothing new, the first one of the others that has gives them records.
--   no row         it is not, and nothing was done: each goes by itself
--   asker          a place in members; a row with 0 alone: what is accepted is accepted, and nothing was acquired; with
--                  -1: there is nothing in any of the partitions
--   first_offsets, last_offsets   what each accepts first: all that it has acquired in one call of the first partition; -1: nothing
--   keys, values, …  null, all of them, of what is behind 16 kB: read_records reads it (see acquire_records)
-- Locks the first share partition, and tries the locks of the others. Reads consumer_group, share_group, group_member,
-- group_heartbeat. Writes share_call and, through acquire_usually, share_state. The caller makes it last (flush_log).
-- right: consume
-- commit: asynchronous
-- null: partition_id, first_offset, last_offset, lock_ms, max_timestamp, keys, values, timestamps, header_counts
-- null: header_keys, header_values, keys[], values[], header_values[]
-- plan: look-ups, nested loops, in order
create function msgtx.acquire_records_together(
    group_name text, member_numbers bigint[], call_numbers bigint[], partition_ids int[], mosts int[], max_bytes bigint,
    first_offsets bigint[], last_offsets bigint[])
returns table (
    asker int, partition_id int, first_offset bigint, last_offset bigint, lock_ms int, max_timestamp bigint, keys bytea[], "values" bytea[],
    timestamps bigint[], header_counts int[], header_keys text[], header_values bytea[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    partitions_at_once constant int := 256;  -- that are locked
    inline_bytes constant bigint := 16384;  -- as in acquire_records
    moment constant timestamptz := msgtx.clock();
    nothing constant bigint[] := array_fill(-1::bigint, array[cardinality(member_numbers)]);
    g msgtx.share_group;
    id int;
    is_first boolean;
    rows_found int;
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights('{consume}', partition_ids) and msgtx.require_names('group', array[group_name]);
    end if;
    select s.* into g
    from (select c.group_id from msgtx.consumer_group c where c.name = group_name limit 1) c
    cross join lateral (select s.* from msgtx.share_group s where s.group_id = c.group_id limit 1) s;
    if cardinality(member_numbers) <> (
           select count(*) from unnest(member_numbers, call_numbers) u(member_number, call_number)
           cross join lateral (
               select m.session_timeout_ms from msgtx.group_member m
               where m.member_number = u.member_number and m.group_id = g.group_id limit 1) m
           cross join lateral (
               select h.heartbeat_at from msgtx.group_heartbeat h where h.member_number = u.member_number
               order by h.heartbeat_number desc limit 1) newest
           where not msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment)
             and (u.call_number <= (select c.call_number from msgtx.share_call c where c.member_number = u.member_number
                                    order by c.call_number desc limit 1)) is not true)
    then
        return;
    end if;
    for place in 1 .. partitions_at_once loop
        if place = 2 then
            partition_ids := partition_ids[:1] || array(
                select p from msgtx.partitions_to_acquire(g, partition_ids[2:], moment, partitions_at_once - 1) p);
        end if;
        exit when place > cardinality(partition_ids);
        id := partition_ids[place];
        is_first := place = 1;
        if is_first then
            ignored := msgtx.lock_share_partition(g.group_id, id);
        else
            continue when not msgtx.try_lock_share_partition(g.group_id, id);
        end if;
        return query
        select u.asker, id, u.first_offset, u.last_offset, g.record_lock_duration_ms, u.max_timestamp, u.keys, u."values",
               u.timestamps, u.header_counts, u.header_keys, u.header_values
        from msgtx.acquire_usually(
            g, id, member_numbers, call_numbers, mosts, max_bytes, case when is_first then first_offsets else nothing end,
            case when is_first then last_offsets else nothing end, inline_bytes) u;
        get diagnostics rows_found = row_count;
        if is_first and rows_found = 0 then
            return;
        end if;
        exit when rows_found <> 1;  -- it has given some, or is looked at by each, who may have some of it already
        looked_at := looked_at + 1;
    end loop;
    if rows_found = 1 and looked_at = cardinality(partition_ids) and looked_at < partitions_at_once then
        asker := -1;
        return next;
    end if;
    insert into msgtx.share_call (member_number, call_number)
    select u.member_number, u.call_number from unnest(member_numbers, call_numbers, first_offsets)
        u(member_number, call_number, first_offset)
    where u.first_offset >= 0;
end $$;
