-- kept_sequences(producer, partitions) → the last stored sequence of this producer id and epoch on each partition, in their
-- order; −1 where there is none; null where the partition is gone, or the caller may not produce to its topic. A producer
-- asks after a failover whether the database has what it was told is stored. Reads as last_sequences does.
-- right: produce
-- null: value[]
create function msgtx.kept_sequences(in_producer_id bigint, in_producer_epoch int, partition_ids int[]) returns bigint[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    visible constant int[] := msgtx.topics_of_caller('{produce}');
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_producers(array[in_producer_id]);
    return msgtx.last_sequences(in_producer_id, in_producer_epoch, null, array(
        select case when exists (
            select from msgtx.partition p
            where p.partition_id = asked.partition_id and coalesce(p.topic_id = any(visible), true))
            then asked.partition_id end
        from unnest(partition_ids) with ordinality asked(partition_id, ordinal) order by asked.ordinal));
end $$;
