-- divide_records(group, partition, ordering, range, most, foreign_keys, next_due, waiting_keys) divides new records of a
-- share group into ranges to deliver now, of at most so many records, and others, which it writes to share_parked: delayed
-- ones, and, with ordering=key, those with the key of another member's record, or of a parked record that is still in the
-- log. A delayed one does not hold its key back.
--   next_offset   behind what it has dealt with
-- The caller holds the share partition's lock, and writes its state in the same SQL transaction. Writes share_parked.
create function msgtx.divide_records(
    in_group_id int, in_partition_id int, ordering text, first_offset bigint, last_offset bigint, moment timestamptz,
        most int, foreign_keys bigint[], inout next_due timestamptz, inout waiting_keys bigint[],
    out next_offset bigint, out first_offsets bigint[], out last_offsets bigint[]
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    found_due timestamptz;
    found_keys bigint[];
begin
    with records as materialized (
        select r.*, case when r.due_at is null and not r.is_foreign and not r.is_behind then
                   count(case when r.due_at is null and not r.is_foreign and not r.is_behind then true end)
                       over (order by r.record_offset) end as number
        from (
            select p.record_offset, p.key_hash, case when p.deliver_at > moment then p.deliver_at end as due_at,
                   ordering = 'key' and coalesce(p.key_hash = any (foreign_keys), false) as is_foreign,
                   ordering = 'key' and p.key_hash is not null and exists (
                       select from msgtx.share_parked w
                       where w.group_id = in_group_id and w.partition_id = in_partition_id and w.key_hash = p.key_hash
                         and msgtx.is_stored(in_partition_id, w.first_offset, w.last_offset)) as is_behind,
                   row_number() over (order by p.record_offset) as place
            from msgtx.record_places(in_partition_id, divide_records.first_offset, divide_records.last_offset) p) r
    ), here as materialized (
        select r.* from records r
        where r.record_offset < coalesce((select c.record_offset from records c where c.number = most + 1),
                                         9223372036854775807)
    ), runs as (
        select min(h.record_offset) as first_offset, max(h.record_offset) as last_offset, h.due_at, h.key_hash, h.is_free
        from (select r.record_offset, r.place, r.due_at, r.number is not null as is_free,
                     case when r.due_at is null and r.number is null then r.key_hash end as key_hash,
                     row_number() over (partition by r.due_at, r.number is not null,
                                        case when r.due_at is null and r.number is null then r.key_hash end
                                        order by r.place) as along
              from here r) h
        group by h.due_at, h.key_hash, h.is_free, h.place - h.along
    ), parked as (
        insert into msgtx.share_parked (group_id, partition_id, first_offset, last_offset, due_at, key_hash, delivery_count)
        select in_group_id, in_partition_id, r.first_offset, r.last_offset, r.due_at, r.key_hash, 0
        from runs r where not r.is_free
    )
    select coalesce((select c.record_offset from records c where c.number = most + 1), divide_records.last_offset + 1),
           array(select r.first_offset from runs r where r.is_free order by r.first_offset),
           array(select r.last_offset from runs r where r.is_free order by r.first_offset),
           (select min(h.due_at) from here h),
           array(select distinct h.key_hash from here h where h.due_at is null and h.is_foreign
               and h.key_hash <> all (waiting_keys))
    into next_offset, first_offsets, last_offsets, found_due, found_keys;
    next_due := least(next_due, found_due);
    waiting_keys := waiting_keys || found_keys;
end $$;
