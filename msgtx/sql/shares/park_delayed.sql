-- park_delayed(group, partition, ordering, spans, next_due, moment) moves records released with a delay out of a share
-- partition's spans into share_parked; → the other spans, and the time of the first due record. With ordering=key each
-- record is parked with its key, which waits with it. The caller holds the share partition's lock, and writes its state in
-- the same SQL transaction. Writes share_parked.
create function msgtx.park_delayed(
    in_group_id int, in_partition_id int, ordering text, moment timestamptz, inout spans msgtx.share_span[],
        inout next_due timestamptz)
language plpgsql volatile as $$
begin
    if not exists (select from unnest(spans) s where s.status = 'available' and s.locked_until > moment) then
        return;
    end if;
    insert into msgtx.share_parked (
        group_id, partition_id, first_offset, last_offset, parked_at, due_at, key_hash, delivery_count, member_number,
        reason)
    select in_group_id, in_partition_id, r.first_offset, r.last_offset, moment, s.locked_until, r.key_hash, s.delivery_count,
           s.member_number, s.reason
    from unnest(spans) s
    cross join lateral (
        select s.first_offset, s.last_offset, null::bigint as key_hash where ordering = 'none'
        union all
        select p.record_offset, p.record_offset, p.key_hash
        from msgtx.record_places(in_partition_id, s.first_offset, s.last_offset) p where ordering = 'key') r
    where s.status = 'available' and s.locked_until > moment;
    next_due := least(next_due, (
        select min(s.locked_until) from unnest(spans) s where s.status = 'available' and s.locked_until > moment));
    spans := array(select s from unnest(spans) s where (s.status = 'available' and s.locked_until > moment) is not true);
end $$;
