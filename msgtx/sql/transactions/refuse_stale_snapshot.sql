-- refuse_stale_snapshot() raises ConfigError above READ COMMITTED: a kept snapshot does not see the tail of the log
-- after a wait for its lock (P23, P24, P39).
create function msgtx.refuse_stale_snapshot() returns boolean language plpgsql volatile as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'MX040', message = format(
            'msgtx needs READ COMMITTED, and this transaction is %s: a kept snapshot does not see the end of the log%s',
            upper(current_setting('transaction_isolation')),
            case when current_setting('transaction_isolation') = current_setting('default_transaction_isolation')
                then '; set default_transaction_isolation of this role and database to read committed' else '' end),
            detail = jsonb_build_object('name', 'transaction_isolation', 'given', current_setting('transaction_isolation'));
    end if;
    return true;
end $$;
