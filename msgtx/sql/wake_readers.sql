-- wake_readers(partitions) tells waiting consumers of partitions at COMMIT, 700 in a notification: PostgreSQL refuses one of 8000
-- bytes. The hot functions notify by themselves as long as one is enough.
create function msgtx.wake_readers(partition_ids int[]) returns boolean language plpgsql volatile
set search_path = pg_catalog, pg_temp as $$
begin
    for place in 1 .. coalesce(cardinality(partition_ids), 0) by 700 loop
        perform pg_notify('msgtx', array_to_string(partition_ids[place : place + 699], ','));
    end loop;
    return true;
end $$;
