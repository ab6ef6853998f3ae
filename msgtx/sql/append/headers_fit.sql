-- headers_fit(counts, keys, values) → whether these are the header columns of a batch: as many keys and values as its
-- records count, and no key is null. A column that is null is as an empty one. Records mostly have the same headers: no sum
-- is needed then.
create function msgtx.headers_fit(counts int[], keys text[], "values" bytea[]) returns boolean language plpgsql immutable
as $$
declare
    expected constant bigint := case when counts[1] = all(counts) then counts[1]::bigint * cardinality(counts)
                                     else (select coalesce(sum(c), 0) from unnest(counts) c) end;
begin
    return coalesce(array_dims(keys), '[1:0]') = '[1:' || expected || ']'
        and array_dims(keys) is not distinct from array_dims("values")
        and (counts is null or (0 <= all(counts)) is true) and array_position(keys, null) is null;
end $$;
