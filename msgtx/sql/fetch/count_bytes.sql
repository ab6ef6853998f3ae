-- count_bytes(partition, until) → the bytes of all rows of a log (their byte_size), or of those in front of an offset
-- and of the rows behind it that earlier calls have counted; null while one call does not come to the end. The sums are
-- kept, for many rows at once, so that the next call reads only newer rows. The caller has locked the partition's row.
-- Reads record_batch. Writes partition.
-- plan: look-ups, in order
create function msgtx.count_bytes(in_partition_id int, until_offset bigint default 9223372036854775807) returns bigint
language plpgsql volatile as $$
declare
    rows_at_once constant int := 10000;  -- some milliseconds
    rows_uncounted constant int := 1000;  -- these are read again and again; it saves updates of the partition's row
    counted record;
    more record;
begin
    select p.counted_offset, p.counted_bytes into counted from msgtx.partition p where p.partition_id = in_partition_id;
    select count(*) as batches, coalesce(sum(r.byte_size), 0)::bigint as bytes, max(r.last_offset) + 1 as next_offset
        into more
    from (select b.byte_size, b.last_offset from msgtx.record_batch b
          where b.partition_id = in_partition_id and b.base_offset >= counted.counted_offset
            and b.base_offset < until_offset
          order by b.base_offset limit rows_at_once) r;
    if more.batches >= rows_uncounted then
        update msgtx.partition p set counted_offset = more.next_offset, counted_bytes = p.counted_bytes + more.bytes
        where p.partition_id = in_partition_id;
    end if;
    return case when more.batches < rows_at_once then counted.counted_bytes + more.bytes end;
end $$;
