-- first_unread_batch(partition_id, position, until, isolation) → the first batch from a position on, below `until`, with a
-- record that a reader would be given; none: there is none. At most 100 aborted rows in front of it are passed by: then the
-- next one is taken for it. Reads record_batch and, through is_committed, the transaction tables.
create function msgtx.first_unread_batch(in_partition_id int, "position" bigint, until bigint, isolation text)
returns table (base_offset bigint, max_timestamp bigint) language sql stable
as $$
    select b.base_offset, b.max_timestamp
    from (select r.base_offset, r.max_timestamp, r.producer_id, r.producer_epoch, r.transaction_number,
                 row_number() over (order by r.base_offset) as place
          from msgtx.rows_between(in_partition_id, "position", until - 1) r
          where r.record_count > 0
            -- compaction may have left of the first row only records in front of the position
            and (r.offset_deltas is null or r.base_offset + r.offset_deltas[r.record_count] >= "position")
          order by r.base_offset limit 101) b
    where b.place > 100 or b.transaction_number is null or isolation = 'read_uncommitted' or msgtx.is_committed(
        in_partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number)
    order by b.base_offset limit 1
$$;
