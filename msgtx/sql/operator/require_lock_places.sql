-- require_lock_places(wanted, what) refuses a call for more than half of the places in the lock table of an idle server: it
-- would be likely to fail half-way, and other calls with it. Every call may take up to 256 places.
create function msgtx.require_lock_places(wanted int, what text) returns boolean language plpgsql stable as $$
declare
    places bigint;
begin
    if wanted <= 256 then
        return true;
    end if;
    places := current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int);
    if wanted > places / 2 then
        raise exception using errcode = 'MX042', message = format(
            '%s %s in one SQL transaction want as many locks, and PostgreSQL has room for %s: use fewer, or raise'
            ' max_locks_per_transaction', wanted, what, places),
            detail = jsonb_build_object('name', 'max_locks_per_transaction', 'given', wanted, 'limit', places);
    end if;
    return true;
end $$;
