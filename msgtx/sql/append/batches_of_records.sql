-- batches_of_records(wanted, partition_ids, …) → the wanted ones of some records as batches outside transactions and without
-- a producer: one per partition, ascending, each with its records in their order; null: none is wanted.
create function msgtx.batches_of_records(
    wanted boolean[], partition_ids int[], timestamps bigint[], record_keys bytea[], record_values bytea[],
    header_counts int[], header_keys text[], header_values bytea[])
returns msgtx.batch[] language plpgsql stable set plan_cache_mode = force_generic_plan set jit = off
set enable_nestloop = off as $$
begin
    return (
        with owners as (
            select array(
                select c.ordinal::int
                from unnest(header_counts) with ordinality c(header_count, ordinal)
                cross join lateral generate_series(1, c.header_count) order by c.ordinal) as ordinals),
        headers as (
            select partition_ids[h.owner] as partition_id, array_agg(h.header_key order by h.ordinal) as header_keys,
                   array_agg(h.header_value order by h.ordinal) as header_values
            from owners o
            cross join lateral unnest(o.ordinals, header_keys, header_values) with ordinality
                h(owner, header_key, header_value, ordinal)
            where wanted[h.owner] group by 1),
        grouped as (
            select r.partition_id, max(r."timestamp") as max_timestamp,
                   case when count(r.key) > 0 then array_agg(r.key order by r.ordinal) end as keys,
                   array_agg(r."value" order by r.ordinal) as "values",
                   case when min(r."timestamp") < max(r."timestamp") then array_agg(r."timestamp" order by r.ordinal) end
                       as timestamps,
                   array_agg(r.header_count order by r.ordinal) as header_counts
            from unnest(partition_ids, timestamps, record_keys, record_values, header_counts) with ordinality
                r(partition_id, "timestamp", key, "value", header_count, ordinal)
            where wanted[r.ordinal] group by r.partition_id)
        select array_agg(
            row(r.partition_id, null, null, null, null, r.max_timestamp, r.keys, r."values", r.timestamps,
                case when h.partition_id is not null then r.header_counts end, h.header_keys, h.header_values)::msgtx.batch
            order by r.partition_id)
        from grouped r left join headers h on h.partition_id = r.partition_id);
end $$;
