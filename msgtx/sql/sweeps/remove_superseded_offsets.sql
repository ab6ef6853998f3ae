-- remove_superseded_offsets(after, most) removes committed offsets for which a newer one counts, after looking at `most`
-- keys (group and partition), and at most 10,000 rows; → how many. A pending one supersedes nothing (P43). Offsets
-- committed during the deletion of their topic go, too. So does the last one of a group without members and commits there
-- for offsets_retention_ms, unless one is pending.
-- Locks the leases (share); passes by rows that are locked. Reads partition, transaction_decision, transaction_seal,
-- consumer_group, group_member, setting. Deletes from group_offset. Writes swept through note_swept. Not flushed by
-- itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops
create function msgtx.remove_superseded_offsets(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    late constant int := 1000;  -- numbers below the newest that may still be committed: they are drawn ahead of the COMMIT
    key record;
    low bigint;
    is_last boolean;
    looked_at int := 0;
    rows_at_once constant int := 10000;  -- in one SQL transaction
    removed_now int;
    dated int;  -- the group that was looked at
    moment constant timestamptz := msgtx.clock();
    retention constant interval := make_interval(secs => msgtx.setting_value('offsets_retention_ms') / 1000.0);
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    -- As in remove_superseded.
    for key in
        select k.group_id, k.partition_id, case
                   when (select true from msgtx.partition p where p.partition_id = k.partition_id) is null
                       then 9223372036854775807
                   when expired.is_so then newest.commit_sequence + 1
                   else newest.commit_sequence end as commit_sequence, expired.is_so as is_expired,
               case when newest.committed_at > moment + retention then newest.commit_sequence end as ahead
        from (select f.key_1::int as group_id, f.key_2::int as partition_id
              from msgtx.keys_after('offset', coalesce(in_after[1], -1), coalesce(in_after[2], -1), most) f) k
        left join lateral (
            select o.commit_sequence, greatest(o.committed_at, (  -- a sealed one may have waited for long
                       select d.decided_at
                       from msgtx.decision_of(o.producer_id, o.producer_epoch, o.transaction_number) d)) as committed_at
            from msgtx.newest_offset_of(k.group_id, k.partition_id) o) newest on true
        left join lateral (
            select (select true from msgtx.group_member m where m.group_id = k.group_id limit 1) is null
                   and (select true from msgtx.group_offset o
                        where o.group_id = k.group_id and o.partition_id = k.partition_id
                          and o.commit_sequence > newest.commit_sequence  -- it does not count: it is pending or aborted
                          and not exists (
                              select from msgtx.decision_of(o.producer_id, o.producer_epoch, o.transaction_number))
                        limit 1) is null as is_so
            from msgtx.consumer_group g
            where g.group_id = k.group_id and greatest(g.emptied_at, newest.committed_at) < moment - retention
                limit 1) expired on true
    loop
        looked_at := looked_at + 1;
        begin
            if shards is null or key.group_id % 50 = any(shards) then
                if key.ahead is not null then
                    update msgtx.group_offset o set committed_at = moment
                    where o.group_id = key.group_id and o.partition_id = key.partition_id and o.commit_sequence = key.ahead;
                end if;
                if key.partition_id is not null and key.group_id is distinct from dated then
                    dated := key.group_id;
                    update msgtx.consumer_group g set emptied_at = moment
                    where g.group_id = key.group_id and g.emptied_at > moment + retention;
                end if;
                is_last := key.is_expired or key.commit_sequence = 9223372036854775807;
                low := case when is_last then -1 else msgtx.swept_below('offset', key.group_id, key.partition_id) end;
                delete from msgtx.group_offset o
                where o.ctid = any(array(
                    select s.ctid from msgtx.group_offset s
                    where s.group_id = key.group_id and s.partition_id = key.partition_id
                      and s.commit_sequence >= low and s.commit_sequence < key.commit_sequence
                    order by s.commit_sequence limit rows_at_once - removed for update skip locked));
                get diagnostics removed_now = row_count;
                removed := removed + removed_now;
                if is_last or key.commit_sequence is null and not exists (
                    select from msgtx.group_offset s where s.group_id = key.group_id and s.partition_id = key.partition_id)
                then
                    ignored := msgtx.forget_swept('offset', key.group_id, key.partition_id);
                elsif low < key.commit_sequence - late then
                    ignored := msgtx.note_swept('offset', key.group_id, key.partition_id, low, least(
                        key.commit_sequence - late, (
                            select s.commit_sequence from msgtx.group_offset s
                            where s.group_id = key.group_id and s.partition_id = key.partition_id
                                and s.commit_sequence >= low
                            order by s.commit_sequence limit 1)));
                end if;
            end if;
        exception when others then
            raise warning 'offsets of group % on partition % could not be removed: %', key.group_id, key.partition_id,
                sqlerrm;
        end;
        if removed >= rows_at_once then
            next_after := array[key.group_id, key.partition_id - 1];  -- on with this key
            return;
        end if;
        next_after := array[key.group_id, key.partition_id];
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
