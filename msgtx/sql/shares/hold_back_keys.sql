-- hold_back_keys(group, partition, spans, foreign_keys, waiting_keys) moves available records that their key keeps from
-- delivery out of a share partition's spans into share_parked: another member has the key, or an earlier record with it
-- is parked, and still in the log. → the other spans, ascending.
-- The caller holds the share partition's lock, and writes its state in the same SQL transaction. Writes share_parked.
create function msgtx.hold_back_keys(
    in_group_id int, in_partition_id int, foreign_keys bigint[], inout spans msgtx.share_span[], inout waiting_keys bigint[]
) language plpgsql volatile as $$
declare
    others constant msgtx.share_span[] := array(select s from unnest(spans) s where s.status <> 'available');
    found_keys bigint[];
begin
    if cardinality(others) = cardinality(spans) then
        return;
    end if;
    with records as materialized (
        select s.place, s.delivery_count, s.member_number, s.reason, r.record_offset, r.key_hash,
               coalesce(r.key_hash = any (foreign_keys), false) as is_foreign, exists (
                   select from msgtx.share_parked p
                   where p.group_id = in_group_id and p.partition_id = in_partition_id and p.key_hash = r.key_hash
                     and p.first_offset < r.record_offset
                         and msgtx.is_stored(in_partition_id, p.first_offset, p.last_offset)) as is_behind,
               row_number() over (order by r.record_offset) as number
        from (select a.*, row_number() over () as place from unnest(spans) a where a.status = 'available') s
        cross join lateral msgtx.record_places(in_partition_id, s.first_offset, s.last_offset) r
    ), parked as (
        insert into msgtx.share_parked (
            group_id, partition_id, first_offset, last_offset, key_hash, delivery_count, member_number, reason)
        select in_group_id, in_partition_id, r.record_offset, r.record_offset, r.key_hash, r.delivery_count, r.member_number,
            r.reason
        from records r where r.is_foreign or r.is_behind
    ), free as (
        select f.*, f.number - row_number() over (partition by f.place order by f.number) as island
        from records f where not f.is_foreign and not f.is_behind
    )
    select array(
               select row(min(f.record_offset), max(f.record_offset), 'available', min(f.delivery_count),
                   min(f.member_number), null, null, null, null, null, null, min(f.reason))::msgtx.share_span
               from free f group by f.place, f.island order by min(f.record_offset)),
           array(select distinct r.key_hash from records r where r.is_foreign and r.key_hash <> all (waiting_keys))
    into spans, found_keys;
    spans := array(select s from unnest(others || spans) s order by s.first_offset);
    waiting_keys := waiting_keys || found_keys;
end $$;
