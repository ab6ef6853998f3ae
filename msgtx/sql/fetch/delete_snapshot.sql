-- delete_snapshot(name) forgets the snapshot of a name → whether there was one. Its records stay as they are: a
-- snapshot holds nothing back. Raises 42501 if another role has saved it, and the caller does not inherit that role's
-- rights. Deletes from named_snapshot. Flushed.
-- right: consume
create function msgtx.delete_snapshot(in_name text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    saver name;
    ignored boolean := msgtx.flush_at_commit();
begin
    select s.role_name into saver from msgtx.named_snapshot s where s.name = in_name for update;
    if not found then
        return false;
    end if;
    ignored := msgtx.require_own_snapshot(in_name, saver);
    delete from msgtx.named_snapshot s where s.name = in_name;
    return true;
end $$;
