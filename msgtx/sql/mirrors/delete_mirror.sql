-- delete_mirror(name) forgets a mirror with its progress → whether there was one. A run of it is fenced by that. The records
-- that it has copied stay. Writes mirror, mirror_place. Flushed.
-- right: admin of all topics
-- plan: look-ups
create function msgtx.delete_mirror(in_name text) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ignored boolean := msgtx.flush_at_commit();
begin
    delete from msgtx.mirror m where m.name = in_name;
    if not found then
        return false;
    end if;
    delete from msgtx.mirror_place p where p.mirror_name = in_name;
    return true;
end $$;
