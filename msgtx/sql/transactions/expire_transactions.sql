-- expire_transactions(most) aborts overdue transactions, at most about `most`, in one SQL transaction; → how many. Clients of older
-- versions call it; expire_overdue is the same in steps.
--   shards, epochs   those of a coordinator, which ends the transactions of its shards; null: all
-- Locks the leases (share); tries producers' locks and never waits. Writes transaction_decision through expire_overdue. Flushed.
create function msgtx.expire_transactions(most int default 1000, shards int[] default null, epochs int[] default null)
returns int language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    step record;
    place bigint[];
    expired int := 0;
begin
    loop
        step := msgtx.expire_overdue(place, least(250, most - expired), shards, epochs);
        expired := expired + step.expired;
        place := step.next_after;
        exit when place is null or expired >= most;
    end loop;
    return expired;
end $$;
