-- refuse_standby() raises PostgreSQL's own 25006 on a standby. Staging would meet an unlogged table first, and fail with
-- 0A000, by which no program knows that it has to look for the primary.
create function msgtx.refuse_standby() returns boolean language plpgsql stable as $$
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = format(
            'the server%s is a standby, and takes no writes', ' ' || host(inet_server_addr()) || ':' || inet_server_port()),
            hint = 'connect to the primary: with several hosts in the URL, target_session_attrs=read-write finds it';
    end if;
    return true;
end $$;
