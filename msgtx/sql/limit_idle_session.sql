-- limit_idle_session() lets the server end this session if it is idle for five seconds within this SQL transaction, unless
-- its limit is shorter: a forgotten session must not keep a partition. Called just before partitions are locked.
create function msgtx.limit_idle_session() returns boolean language plpgsql volatile as $$
begin
    if current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and '5 s' then
        perform set_config('idle_in_transaction_session_timeout', '5s', true);
    end if;
    return true;
end $$;
