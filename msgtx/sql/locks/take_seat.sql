-- take_seat() → the number of a lock that the caller's SQL transaction now holds to its end: a transaction is sealed for it.
-- As long as the seat is taken its session may still commit. Null if another session has locked that number, which anyone
-- may. Shared, drawn by chance, never waited for: two sessions that draw the same one only delay each other's aborts.
-- right: produce
-- null: value
create function msgtx.take_seat() returns int language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    seat constant int := floor(random() * 2147483648)::int;
begin
    return case when pg_try_advisory_xact_lock_shared(1836279560, seat) then seat end;
end $$;
