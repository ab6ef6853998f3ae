-- receive(topic, share_group, max_records, max_bytes) gives the caller records of a topic that nobody else in a share group
-- has, each with a receipt for acknowledge, until locked_until. The first caller makes the group, unless it was configured
-- before. What is not acknowledged by then is delivered again, with a higher delivery_count.
--   no row   there is nothing, or others receive from the same partitions now: call again
-- All callers are one member of the group (sql_member), but each call is a member by itself for the order by key. After a
-- rollback the records were never delivered; so it is called in a SQL transaction of its own, which limit_session limits.
-- Tries locks of share partitions until one is free; acquire_records may then wait. Reads partition. Writes through
-- sql_member, acquire_records.
-- right: consume
-- plan: look-ups, nested loops, in order
create function msgtx.receive(
    topic text, share_group text, max_records bigint default 10, max_bytes bigint default 1048576
) returns setof msgtx.received_record language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_variable
declare
    ignored boolean := msgtx.refuse_stale_snapshot() and (
        msgtx.acts_for_owner() or msgtx.require_right_on_topic('consume', topic)
        and msgtx.require_names('group', array[share_group]));
    found_topic constant int := msgtx.topic_to_read('receive', topic, share_group, max_records, max_bytes);
    call constant bigint := -nextval('msgtx.commit_sequence');
    receipt_behind constant text := '.' || -call;
    member bigint;
    moment timestamptz;
    g msgtx.share_group;
    partition_ids int[];
    candidates int[];
    chosen int;
    looked_at int;
begin
    ignored := msgtx.limit_session();
    member := msgtx.sql_member(share_group, topic);
    g := msgtx.share_group_of(share_group, member);
    moment := msgtx.clock();
    partition_ids := array(
        select p.partition_id from msgtx.partition p where p.topic_id = found_topic order by random());
    -- Mostly one of the first few that may have records is free, and has them: a look takes 10 µs.
    foreach looked_at in array array[16, 256] loop
        candidates := array(select u from msgtx.partitions_to_acquire(g, partition_ids, moment, looked_at) u);
        chosen := (select u from unnest(candidates) u where msgtx.try_lock_share_partition(g.group_id, u) limit 1);
        exit when chosen is not null or cardinality(candidates) < looked_at;
    end loop;
    if chosen is null then
        return;
    end if;
    return query
    select topic, p.partition_index, r."offset", r."timestamp", r.key, r.value, r.headers, a.delivery_count,
           moment + a.lock_ms * interval '1 ms', p.receipt_before || r."offset" || receipt_behind
    from msgtx.acquire_records(
        share_group, array[member], array[call], chosen || array_remove(partition_ids, chosen), array[max_records::int],
        max_bytes, array[-1::bigint], array[-1::bigint]) a
    cross join lateral (
        select p.partition_index, g.group_id || '.' || p.partition_id || '.' as receipt_before
        from msgtx.partition p where p.partition_id = a.partition_id limit 1) p
    cross join lateral msgtx.unpack_records(
        case when a.offsets is null then a.first_offset else 0 end, a.offsets, a.max_timestamp, a.keys, a."values",
        a.timestamps, a.header_counts, a.header_keys, a.header_values, 0, cardinality(a."values")) r
    where a.asker > 0;
end $$;
