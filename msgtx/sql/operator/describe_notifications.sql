-- describe_notifications() → how full the server's queue of notifications is, from 0 to 1, and the sessions of all
-- databases with the longest SQL transactions: a listening session reads the queue only between its transactions.
-- Null pids: not shown to the caller. With the caller's rights, not the owner's.
-- right: observe of all topics
-- null: pids, begun
create function msgtx.describe_notifications(out usage float8, out pids int[], out begun timestamptz) language plpgsql stable
set search_path = pg_catalog, pg_temp as $$
begin
    usage := pg_notification_queue_usage();
    select array_agg(o.pid order by o.xact_start), min(o.xact_start) into pids, begun
    from (select a.pid, a.xact_start from pg_stat_activity a
          where a.xact_start is not null and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
          order by a.xact_start limit 3) o;
end $$;
