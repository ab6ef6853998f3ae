-- check_records(partition_ids, dedup_keys, …) raises InvalidRequest unless the columns of records with keys of deduplication
-- have one length above 0, the times are those of records, and each key has 1 to 256 bytes.
create function msgtx.check_records(
    partition_ids int[], dedup_keys text[], timestamps bigint[], record_keys bytea[], record_values bytea[],
    header_counts int[], header_keys text[], header_values bytea[]
) returns boolean language plpgsql stable as $$
declare
    records int := cardinality(partition_ids);
    wrong record;
    ignored boolean;
begin
    if records > 0 is not true then
        raise exception using errcode = 'MX042', message = 'a call needs at least one record',
            detail = jsonb_build_object('name', 'records', 'given', 0, 'limit', 1);
    end if;
    if (cardinality(dedup_keys), cardinality(timestamps), cardinality(record_keys), cardinality(record_values))
           is distinct from (records, records, records, records) or array_position(timestamps, null) > 0
       or cardinality(header_counts) <> records or not msgtx.headers_fit(header_counts, header_keys, header_values) then
        raise exception using errcode = 'MX042', message = format(
            'the columns of %s records do not have one length, or a timestamp is missing', records),
            detail = jsonb_build_object('name', 'records', 'reason', 'columns');
    end if;
    ignored := msgtx.check_times(timestamps);
    select k.dedup_key, octet_length(k.dedup_key) as bytes into wrong
    from unnest(dedup_keys) k(dedup_key) where octet_length(k.dedup_key) between 1 and 256 is not true limit 1;
    if found then
        raise exception using errcode = 'MX042', message = format(
            'a dedup_key has 1 to 256 bytes of UTF-8, not %s', coalesce(wrong.bytes::text, 'none (null)')),
            detail = jsonb_build_object('name', 'dedup_key', 'limit', 256);
    end if;
    return true;
end $$;
