-- parts_of_receipt(receipt) → what a receipt of write_batch says: the attempt's producer id, and the last sequence that it
-- has sent to each partition; one row without a partition if it has sent nothing. No row for null. Raises for other texts.
-- plan: look-ups
create function msgtx.parts_of_receipt(receipt text)
returns table (producer_id bigint, partition_id int, last_sequence bigint)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    if receipt !~ '^\d{1,18}( \d{1,9}=\d{1,18})*$' then
        raise exception using errcode = 'MX042', message = 'a receipt is null, or what write_batch has returned',
            detail = jsonb_build_object('name', 'receipt');
    end if;
    return query
    select split_part(receipt, ' ', 1)::bigint, t.tail[1]::int, t.tail[2]::bigint
    from (select where receipt is not null) given
    left join lateral regexp_matches(receipt, ' (\d+)=(\d+)', 'g') t(tail) on true;
end $$;
