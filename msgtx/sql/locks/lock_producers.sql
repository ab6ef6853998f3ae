-- lock_producers(producer_ids) waits for the exclusive locks on several producer ids, ascending by their keys, to the end of
-- the SQL transaction, and no longer for one than other calls do: lock_producer, by itself, has no limit. Waits first in the
-- order of locks.
-- right: produce
create function msgtx.lock_producers(producer_ids bigint[]) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    one bigint;
    ignored boolean;
begin
    for one in select u from unnest(producer_ids) u order by (u << 32) >> 32 loop
        ignored := msgtx.lock_producer(one);
    end loop;
    return true;
end $$;
