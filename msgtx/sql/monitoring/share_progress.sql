-- share_progress(group_id, partition, isolation, now_ms, ends …) → how far a share group is on a partition; no row where it
-- has not begun.
--   start_offset, next_offset   the first offset that is not done, and the next one to acquire for the first time
--   in_flight  offsets acquired, pending in a transaction, rejected, or to be delivered again
--   parked     delayed, or waiting for an earlier record with their key; counted in up to 10,000 rows
--   records    both, and those from the next record for the group to the last one that it may read; aborted ones in between
--              count
--   age_ms     of the oldest batch that is not done, by its newest record; null: there is none
-- Reads share_state, share_parked, record_batch and, through first_unread_batch, the transaction tables.
create function msgtx.share_progress(
    in_group_id int, in_partition_id int, isolation text, now_ms bigint, log_start_offset bigint, last_stable_offset bigint,
    log_end_offset bigint)
returns table (
    start_offset bigint, next_offset bigint, in_flight bigint, parked bigint, records bigint, age_ms bigint)
language sql stable as $$
    select coalesce(l.start_offset, unread.base_offset, l.next_offset), l.next_offset, l.in_flight, l.parked,
           l.in_flight + l.parked + case when unread.base_offset is null then 0
               else l.readable_end - greatest(unread.base_offset, l.next_offset) end,
           case when coalesce(oldest.max_timestamp, unread.max_timestamp) is not null
               then greatest(now_ms - coalesce(oldest.max_timestamp, unread.max_timestamp), 0) end
    from (
        select greatest(newest.next_offset, log_start_offset) as next_offset,
               case isolation when 'read_committed' then last_stable_offset else log_end_offset end as readable_end,
               flying.offsets as in_flight, parked.offsets as parked,
               case when flying.start_offset is not null or parked.start_offset is not null
                   then greatest(least(flying.start_offset, parked.start_offset), log_start_offset) end as start_offset
        from msgtx.share_state_of(in_group_id, in_partition_id) newest
        cross join lateral (
            select min(u.first_offset) as start_offset,
                   coalesce(sum(u.last_offset - greatest(u.first_offset, log_start_offset) + 1), 0)::bigint as offsets
            from unnest(newest.spans) u where u.last_offset >= log_start_offset) flying
        cross join lateral (
            select min(p.first_offset) as start_offset,
                   coalesce(sum(p.last_offset - greatest(p.first_offset, log_start_offset) + 1), 0)::bigint as offsets
            from (select w.first_offset, w.last_offset from msgtx.share_parked w
                  where w.group_id = in_group_id and w.partition_id = in_partition_id
                  order by w.first_offset limit 10000) p
            where p.last_offset >= log_start_offset) parked
        offset 0) l
    left join lateral msgtx.first_unread_batch(in_partition_id, l.next_offset, l.readable_end, isolation) unread
        on l.next_offset < l.readable_end
    left join lateral (
        select r.max_timestamp from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.base_offset <= l.start_offset
        order by r.base_offset desc limit 1) oldest on true
$$;
