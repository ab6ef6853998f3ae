-- limit_session() keeps this SQL transaction from holding locks of msgtx for long, from here to its end: the server ends the
-- session if it idles for five seconds, and a statement that waits as long for a lock of another session fails, unless its
-- limits are shorter. No limit on statements: it would also end the wait of a COMMIT for a synchronous standby, as if that
-- had answered. PREPARE TRANSACTION would keep the locks without a session; PostgreSQL refuses it to a session that holds
-- one lock for itself and for the transaction. So this takes such a lock, which no other session ever takes. Called just
-- before the locks that it limits.
create function msgtx.limit_session() returns boolean language plpgsql volatile as $$
begin
    if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and '5 s' then
        perform set_config('idle_in_transaction_session_timeout', '5s', true);
    end if;
    if current_setting('lock_timeout')::interval not between '1 ms' and '5 s' then
        perform set_config('lock_timeout', '5s', true);
    end if;
    perform pg_try_advisory_lock_shared(1836279559, pg_backend_pid()),
            pg_try_advisory_xact_lock_shared(1836279559, pg_backend_pid());
    return true;
end $$;
