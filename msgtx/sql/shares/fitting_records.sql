-- fitting_records(partition, first, last, max_bytes) → how many of these offsets have records of so many bytes, at least one, and how many bytes
-- that is: each record of a row of the log counts as the others of the row do. Nothing is left of them: count 0.
-- Reads record_batch.
create function msgtx.fitting_records(
    in_partition_id int, first_offset bigint, last_offset bigint, max_bytes bigint, out count bigint, out bytes bigint)
language sql stable
as $$
    select coalesce(max(f.upto), fitting_records.first_offset - 1) - fitting_records.first_offset + 1, coalesce(sum(f.bytes), 0)::bigint
    from (
        select r.begins + fits.records - 1 as upto, fits.records * r.each as bytes
        from (
            select o.begins, o.records, o.each, coalesce(sum(o.records * o.each) over (
                       order by o.begins rows between unbounded preceding and 1 preceding), 0) as before
            from (
                select greatest(b.base_offset, fitting_records.first_offset) as begins,
                       least(b.last_offset, fitting_records.last_offset)
                           - greatest(b.base_offset, fitting_records.first_offset) + 1 as records,
                       b.byte_size::float8 / (b.last_offset - b.base_offset + 1) as each
                from msgtx.record_batch b
                where b.partition_id = in_partition_id and b.base_offset <= fitting_records.last_offset
                  and b.last_offset >= fitting_records.first_offset
                  and b.base_offset >= coalesce((
                      select e.base_offset from msgtx.record_batch e
                      where e.partition_id = in_partition_id and e.base_offset <= fitting_records.first_offset
                      order by e.base_offset desc limit 1), 0)
                order by b.base_offset) o) r
        cross join lateral (
            select least(r.records, greatest(1, ceil((max_bytes - r.before) / greatest(r.each, 1))))::bigint as records) fits
        where r.before < max_bytes) f
$$;
