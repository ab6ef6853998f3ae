-- lock_holders() → sessions of this database that hold msgtx's advisory locks (of producers, groups and their partitions,
-- partitions, share partitions, marking), and how many sessions wait for one of them. pid null: a prepared transaction of
-- PostgreSQL. It takes no lock itself. Columns that pg_stat_activity hides from the caller are null (visible: false). With
-- the caller's rights, not the owner's.
-- right: observe of all topics
-- null: pid, role, application_name, client_address, state, state_since, transaction_since
create function msgtx.lock_holders()
returns table (
    pid int, role text, application_name text, client_address text, visible boolean, state text, state_since timestamptz,
    transaction_since timestamptz, locks bigint, partitions bigint, waiting bigint, checked_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    with ours as materialized (
        select l.pid, l.classid::bigint as class, l.objid::bigint as key, l.granted
        from pg_locks l
        where l.locktype = 'advisory' and l.objsubid = 2
            and (l.classid::bigint between 1836279553 and 1836279556 or l.classid::bigint between 1836279561 and 1836279562)
          and l.database = (select d.oid from pg_database d where d.datname = current_database())),
    held as (
        select h.pid, count(*) as locks, count(*) filter (where h.class = 1836279555) as partitions,
               (select count(distinct w.pid) from ours w
                join ours mine on mine.class = w.class and mine.key = w.key and mine.granted
                    and mine.pid is not distinct from h.pid
                where not w.granted) as waiting
        from ours h where h.granted group by h.pid)
    select h.pid, a.usename::text, a.application_name, host(a.client_addr), a.backend_start is not null, a.state,
           a.state_change, a.xact_start, h.locks, h.partitions, h.waiting, statement_timestamp()
    from held h
    left join pg_stat_activity a on a.pid = h.pid
    where h.pid is distinct from pg_backend_pid()
    order by h.waiting desc, h.locks desc
    limit 100;
end $$;
