-- snapshot_holders() → the holders of the horizon of this database, behind which VACUUM can neither clean nor freeze;
-- the oldest first. With the caller's rights, not the owner's: the state of other roles' sessions is hidden from roles
-- that are not in pg_read_all_stats.
--   kind      session, standby (hot_standby_feedback), slot, prepared (a prepared transaction of PostgreSQL)
--   since     when the session's SQL transaction began, or the transaction was prepared; null where that is not known
--   age       transactions since its oldest xid; null if it pins none
--   retained  bytes of WAL that a slot keeps.
-- right: observe of all topics
-- null: wal_status, retained, pid, role, client_address, state, since, age
create function msgtx.snapshot_holders()
returns table (
    kind text, name text, pid int, role text, client_address text, state text, since timestamptz, age int,
    active boolean, wal_status text, retained bigint, checked_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select h.*, statement_timestamp()
    from (
        select 'session', a.application_name, a.pid, a.usename::text, host(a.client_addr), a.state, a.xact_start,
               greatest(age(a.backend_xmin), age(a.backend_xid)), true, null::text, null::bigint
        from pg_stat_activity a
        where a.datname = current_database() and a.pid <> pg_backend_pid()
          and a.backend_type not in ('autovacuum worker', 'walsender')
          and (a.backend_xmin is not null or a.backend_xid is not null)
        union all
        select 'standby', r.application_name, r.pid, r.usename::text, host(r.client_addr), r.state, null,
               age(r.backend_xmin), true, null, null
        from pg_stat_replication r where r.backend_xmin is not null
        union all
        select 'slot', s.slot_name::text, s.active_pid, null, null, s.slot_type, null,
               greatest(age(s.xmin), age(s.catalog_xmin)), s.active, s.wal_status,
               pg_wal_lsn_diff(
                   case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
                   s.restart_lsn)::bigint
        from pg_replication_slots s where not s.temporary
        union all
        select 'prepared', x.gid, null, x.owner::text, null, null, x.prepared, age(x.transaction), true, null, null
        from pg_prepared_xacts x where x.database = current_database()) h(
            kind, name, pid, role, client_address, state, since, age, active, wal_status, retained)
    order by h.age desc nulls last, h.kind, h.name
    limit 100;
end $$;
