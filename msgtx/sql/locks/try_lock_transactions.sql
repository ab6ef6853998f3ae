-- try_lock_transactions(producers, partitions, groups) takes the locks of several whole transactions that go out together:
-- the exclusive ones on producers and partitions, the shared ones on groups. Returns the positions, in producer_ids, of the
-- transactions that lack one; those go by themselves. Raises 42501 if the caller may not use one of these names, and
-- MX042 if they are more than the lock table can hold.
--   partition_owners, group_owners   the position of the transaction that needs each
-- Never waits: with the locks of several transactions in hand, a wait for one of them would delay the others, and could be a
-- deadlock. Its locks are held to the end of the SQL transaction.
-- right: produce
create function msgtx.try_lock_transactions(
    producer_ids bigint[], partition_owners int[], partition_ids int[], group_owners int[], group_names text[])
returns int[] language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean := msgtx.require_lock_places(
        cardinality(producer_ids) + cardinality(partition_ids) + cardinality(group_names),
            'producers, partitions and groups');
begin
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_producers(producer_ids) and msgtx.require_rights('{produce}', partition_ids);
        if group_names <> '{}' then
            ignored := msgtx.require_names('group', group_names);
        end if;
    end if;
    return array(
        select p.owner::int from unnest(producer_ids) with ordinality p(producer_id, owner)
        where not msgtx.try_lock_producer(p.producer_id)
        union select g.owner from unnest(group_owners, group_names) g(owner, group_name)
        where not msgtx.try_lock_group_shared(g.group_name)
        union select p.owner from unnest(partition_owners, partition_ids) p(owner, partition_id)
        where not msgtx.try_lock_partition(p.partition_id));
end $$;
