-- describe_server() → the facts about the server as a whole that doctor reports. With the caller's rights, not the
-- owner's.
--   sees_all     whether the caller may see all sessions (pg_read_all_stats); hidden: how many of this database it cannot
--   frozen_age   age(datfrozenxid) of this database, in transactions
--   sessions     of all databases; connection_limit: how many ordinary roles may have.
-- right: observe of all topics
create function msgtx.describe_server(
    out role text, out sees_all boolean, out hidden bigint, out in_recovery boolean, out sessions bigint,
    out connection_limit int, out frozen_age bigint, out settings jsonb)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    role := current_user;
    sees_all := pg_has_role(current_user, 'pg_read_all_stats', 'usage');
    hidden := (select count(*) from pg_stat_activity a
               where a.datname = current_database() and a.backend_start is null and not sees_all);
    in_recovery := pg_is_in_recovery();
    sessions := (select sum(d.numbackends) from pg_stat_database d);
    connection_limit := current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int;
    frozen_age := (select age(d.datfrozenxid) from pg_database d where d.datname = current_database());
    settings := (select jsonb_object_agg(s.name, s.setting) from pg_settings s where s.name in (
        'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'autovacuum', 'track_counts',
        'autovacuum_freeze_max_age', 'max_connections', 'default_transaction_isolation', 'default_transaction_read_only',
        'idle_in_transaction_session_timeout', 'zero_damaged_pages', 'server_version'));
end $$;
