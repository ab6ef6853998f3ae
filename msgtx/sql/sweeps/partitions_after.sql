-- partitions_after(after, most) → the ids of the next `most` partitions above `after`, ascending; also of deleted ones on
-- which a transaction began. For sweeps, which look at `most` at once.
-- Reads partition, transaction_partition: an index probe for each.
-- plan: look-ups, nested loops
create function msgtx.partitions_after(in_after bigint, most int) returns int[] language plpgsql stable as $$
begin
    return array(
        with recursive touched(partition_id) as (
            select (select tp.partition_id from msgtx.transaction_partition tp
                    where tp.partition_id > in_after order by tp.partition_id limit 1)
            union all
            select (select tp.partition_id from msgtx.transaction_partition tp
                    where tp.partition_id > t.partition_id order by tp.partition_id limit 1)
            from touched t where t.partition_id is not null)
        select a.partition_id
        from (
            (select t.partition_id from touched t where t.partition_id is not null limit most)
            union
            (select p.partition_id from msgtx.partition p where p.partition_id > in_after
             order by p.partition_id limit most)) a
        order by a.partition_id limit most);
end $$;
