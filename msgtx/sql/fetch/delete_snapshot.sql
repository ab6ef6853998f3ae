-- delete_snapshot(name) forgets the snapshot of a name → whether there was one. What it covers stays as it is: a snapshot holds
-- nothing back. Deletes from named_snapshot. Flushed.
create function msgtx.delete_snapshot(in_name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.flush_at_commit();
begin
    delete from msgtx.named_snapshot s where s.name = in_name;
    return found;
end $$;
