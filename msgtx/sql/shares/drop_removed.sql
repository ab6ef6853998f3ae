-- drop_removed(group, partition, most, looks_up) takes delayed records that are gone from the log out of share_parked, of
-- the first `most` rows; → their keys: other records may wait for them. Retention removes from the front. Compaction
-- removes anywhere: with looks_up, in a compacted topic, `most` rows from a random place on are looked up, so that each is
-- in its turn. The caller holds the share partition's lock, and adds the keys to those of its state. Reads partition,
-- topic. Deletes from share_parked.
create function msgtx.drop_removed(in_group_id int, in_partition_id int, most int, looks_up boolean, out dropped int,
    out key_hashes bigint[])
language plpgsql volatile as $$
declare
    log_start bigint;
    is_compacted boolean;
    place bigint := 0;
begin
    select p.log_start_offset, looks_up and t.cleanup_policy <> 'delete' into log_start, is_compacted
    from msgtx.partition p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where p.partition_id = in_partition_id;
    if is_compacted then
        select lowest.at + floor(random() * (highest.at - lowest.at + 1))::bigint into place
        from (select p.first_offset as at from msgtx.share_parked p
              where p.group_id = in_group_id and p.partition_id = in_partition_id order by p.first_offset limit 1) lowest
        cross join (select p.first_offset as at from msgtx.share_parked p
                    where p.group_id = in_group_id and p.partition_id = in_partition_id order by p.first_offset desc
                        limit 1) highest;
    end if;
    with gone as (
        delete from msgtx.share_parked o where o.ctid = any(array(
            select p.ctid from (
                (select p.ctid, p.first_offset, p.last_offset, p.due_at, p.key_hash from msgtx.share_parked p
                 where p.group_id = in_group_id and p.partition_id = in_partition_id and p.first_offset >= place
                   and (is_compacted or p.first_offset < log_start)
                 order by p.first_offset limit most)
                union all
                (select p.ctid, p.first_offset, p.last_offset, p.due_at, p.key_hash from msgtx.share_parked p
                 where p.group_id = in_group_id and p.partition_id = in_partition_id and p.first_offset < place
                 order by p.first_offset limit most)
                limit most) p
            where p.last_offset < log_start
               or p.due_at is not null and p.key_hash is not null and is_compacted
                  and not msgtx.is_stored(in_partition_id, p.first_offset, p.last_offset)))
        returning o.key_hash)
    select count(*)::int, coalesce(array_agg(distinct g.key_hash) filter (where g.key_hash is not null), '{}')
    into dropped, key_hashes from gone g;
end $$;
