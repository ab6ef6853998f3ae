-- check_timeout(timeout_ms) raises InvalidTransactionTimeout unless 0 < timeout ≤ transaction_max_timeout_ms. Null is fine.
create function msgtx.check_timeout(timeout_ms int) returns boolean language plpgsql stable as $$
begin
    if timeout_ms is not null and (timeout_ms <= 0 or timeout_ms > msgtx.setting_value('transaction_max_timeout_ms')) then
        raise exception using errcode = 'MX050', message = format(
            'transaction timeout %s ms is not between 1 and %s (transaction_max_timeout_ms)',
            timeout_ms, msgtx.setting_value('transaction_max_timeout_ms')),
            detail = jsonb_build_object('given', timeout_ms, 'limit', msgtx.setting_value('transaction_max_timeout_ms'));
    end if;
    return true;
end $$;
