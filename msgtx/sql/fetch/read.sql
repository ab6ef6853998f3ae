-- read(topic, partition, start, "end") → the committed records of a partition with start ≤ offset < end, in no order; null:
-- from the log start, up to the last stable offset, which no end goes beyond. The same records for the same roles as in
-- `committed_records`; but of the log only the rows of this range are read, which a condition on "offset" in the view cannot
-- do. It becomes part of the statement that calls it, so other conditions are pushed down and a LIMIT ends it early.
-- right: consume
create function msgtx.read(topic text, partition int, start bigint default null, "end" bigint default null)
returns setof msgtx.committed_records language sql stable
begin atomic
    select r.*
    from msgtx.committed_records r
    where r.partition_id = (select msgtx.partition_id_of(read.topic, read.partition))
      and r.base_offset >= (
          select msgtx.base_offset_of(msgtx.partition_id_of(read.topic, read.partition), coalesce(read.start, 0)))
      and r.base_offset < (select coalesce(read."end", 9223372036854775807))
      and r."offset" >= (select coalesce(read.start, 0))
      and r."offset" < (select coalesce(read."end", 9223372036854775807));
end;
