-- is_overdue(opened_at, timeout_ms, backend, seen_at) → whether anyone may abort an open transaction (I12): it is past its
-- own timeout. If it was opened further ahead than that, a clock was set back: its age is not known. It is overdue when the
-- session that opened it has ended, or when its timeout has passed since a sweep saw it so (seen_at), so that no reader
-- waits until the clock has caught up.
create function msgtx.is_overdue(opened_at timestamptz, timeout_ms int, backend int, seen_at timestamptz)
returns boolean language plpgsql volatile as $$
declare
    now_at timestamptz := msgtx.clock();
    lifetime interval := timeout_ms * interval '1 ms';
begin
    return case
        when opened_at + lifetime < now_at then true
        when msgtx.is_ahead(opened_at, timeout_ms, now_at) then coalesce(seen_at + lifetime < now_at, false)
            or not exists (select from pg_stat_activity a where a.pid = backend)
        else false end;
end $$;
