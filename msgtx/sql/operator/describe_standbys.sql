-- describe_standbys() → the standbys that follow this server, by name, and how far what they show is behind. With the
-- caller's rights, not the owner's: most columns are null for roles that are not in pg_read_all_stats.
--   behind_ms   as PostgreSQL has measured it lately; null: nothing was replayed lately.
-- right: observe of all topics
-- null: client_address, state, sync_state, behind_bytes, behind_ms
create function msgtx.describe_standbys()
returns table (
    name text, role text, client_address text, state text, sync_state text, behind_bytes bigint, behind_ms bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select r.application_name, r.usename::text, host(r.client_addr), r.state, r.sync_state,
           pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
                           r.replay_lsn)::bigint,
           (extract(epoch from r.replay_lag) * 1000)::bigint
    from pg_stat_replication r
    order by r.application_name, r.pid limit 100;
end $$;
