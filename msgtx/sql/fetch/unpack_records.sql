-- unpack_records(base_offset, deltas, max_timestamp, keys, …, before, most) → the records of a row of the log, of which the
-- first ones (`before`) are left out: at most so many. deltas null: each offset is a record's.
create function msgtx.unpack_records(
    base_offset bigint, offset_deltas bigint[], max_timestamp bigint, keys bytea[], "values" bytea[], timestamps bigint[],
    header_counts int[], header_keys text[], header_values bytea[], before bigint, most bigint)
returns table ("offset" bigint, "timestamp" timestamptz, key bytea, value bytea, headers jsonb) language sql stable as $$
    select base_offset + coalesce(offset_deltas[before + u.place], before + u.place - 1),
           'epoch'::timestamptz + coalesce(u.moment, max_timestamp) * interval '1 ms', u.key, u.value,
           case when u.header_count > 0 then (
               select msgtx.header_object(header_keys[n.before + 1:n.before + u.header_count],
                                          header_values[n.before + 1:n.before + u.header_count])
               from (select coalesce(sum(c), 0) as before from unnest(header_counts[:before + u.place - 1]) c) n) end
    from unnest(keys[before + 1:before + most], "values"[before + 1:before + most], timestamps[before + 1:before + most],
                header_counts[before + 1:before + most]) with ordinality u(key, value, moment, header_count, place)
$$;
