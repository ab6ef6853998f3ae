-- tell_readers(partitions) has waiting consumers of these partitions woken, for a client that cannot NOTIFY after
-- its commit: the server's queue of notifications is full. Writes wake_up, by wake_readers.
-- right: produce
-- commit: asynchronous
create function msgtx.tell_readers(partition_ids int[]) returns boolean language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{produce}', partition_ids);
    return msgtx.wake_readers(partition_ids);
end $$;
