-- headers_fit(counts, keys, values) → whether these are the header columns of a batch: as many keys and values as its records
-- count, and no key is null. A column that is null is as an empty one.
create function msgtx.headers_fit(counts int[], keys text[], "values" bytea[]) returns boolean language plpgsql immutable as $$
begin
    return coalesce((select sum(c) from unnest(counts) c), 0) = coalesce(cardinality(keys), 0)
        and coalesce(cardinality(keys), 0) = coalesce(cardinality("values"), 0)
        and (0 <= all(counts)) is not false and array_position(counts, null) is null
        and array_position(keys, null) is null;
end $$;
