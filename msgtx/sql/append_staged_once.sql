-- append_staged_once() appends all that this SQL transaction has staged, unless that was done: its trigger calls it for each
-- row, and the first call takes all rows. So it looks for its own row by the whole key, whatever the table's size was when that
-- was planned: a search for any row of the transaction would pass all that were deleted, each time. Locks partitions.
-- Reads staged_record.
create function msgtx.append_staged_once() returns trigger language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
    ignored boolean;
begin
    if exists (select from msgtx.staged_record s
               where s.staged_by = new.staged_by and s.staged_number = new.staged_number) then
        ignored := msgtx.append_staged(new.staged_by);
    end if;
    return null;
end $$;
