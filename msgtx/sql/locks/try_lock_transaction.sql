-- try_lock_transaction(producer_id, groups, batches) → whether the locks of a whole transaction were free: the exclusive
-- ones on producer and partitions, the shared ones on groups. Those that it took are held to the end of the SQL transaction.
-- Never waits: with the locks of other transactions in hand, a wait for one of them would delay these, and could be a
-- deadlock. Raises, with no lock in hand, 42501 if the caller may not use one of the names, and MX042 if they are more than
-- the lock table can hold.
create function msgtx.try_lock_transaction(in_producer_id bigint, group_names text[], batches msgtx.batch[])
returns boolean language plpgsql volatile as $$
declare
    group_name text;
    b msgtx.batch;
    ignored boolean;
begin
    ignored := cardinality(batches) + cardinality(group_names) <= 256
        or msgtx.require_lock_places(cardinality(batches) + cardinality(group_names), 'partitions and groups');
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_producers(array[in_producer_id])
            and msgtx.require_rights('{produce}', array(select u.partition_id from unnest(batches) u));
        if group_names <> '{}' then
            ignored := msgtx.require_names('group', group_names);
        end if;
    end if;
    if not msgtx.try_lock_producer(in_producer_id) then
        return false;
    end if;
    foreach group_name in array group_names loop
        if not msgtx.try_lock_group_shared(group_name) then
            return false;
        end if;
    end loop;
    foreach b in array batches loop
        if not msgtx.try_lock_partition(b.partition_id) then
            return false;
        end if;
    end loop;
    return true;
end $$;
