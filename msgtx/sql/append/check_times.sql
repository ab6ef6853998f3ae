-- check_times(timestamps) raises InvalidRequest for the first time that no record may have, in the words of clients;
-- nulls are left to the caller.
create function msgtx.check_times(timestamps bigint[]) returns boolean language plpgsql immutable as $$
declare
    wrong bigint;
begin
    select t.at into wrong
    from unnest(timestamps) with ordinality t(at, ordinal) where not msgtx.is_record_time(t.at) order by t.ordinal limit 1;
    if found then
        raise exception using errcode = 'MX042', message = format(
            'a timestamp is in milliseconds since 1970 UTC and before the year 9999, not %s', wrong),
            detail = jsonb_build_object('name', 'timestamp', 'given', wrong);
    end if;
    return true;
end $$;
