-- has_moved() → whether this database is in another place (server or database) than when its sequences were last known to be
-- ahead of what was given out (skip_ahead). False where the server does not say where it is. Reads installation.
create function msgtx.has_moved() returns boolean language plpgsql stable as $$
begin
    return coalesce((
        select (i.sequences_system, i.sequences_database) <> (s.system_identifier, d.oid::bigint)
        from msgtx.installation i cross join pg_control_system() s
        join pg_database d on d.datname = current_database()), false);
exception when insufficient_privilege or feature_not_supported then
    return false;
end $$;
