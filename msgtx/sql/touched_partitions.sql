-- touched_partitions() → the partitions on which a transaction ever began, by one index probe each.
create function msgtx.touched_partitions() returns table (partition_id int) language plpgsql stable as $$
#variable_conflict use_column
begin
    return query
    with recursive touched(partition_id) as (
        select (select tp.partition_id from msgtx.transaction_partition tp order by tp.partition_id limit 1)
        union all
        select (select tp.partition_id from msgtx.transaction_partition tp
                where tp.partition_id > t.partition_id order by tp.partition_id limit 1)
        from touched t where t.partition_id is not null)
    select t.partition_id from touched t where t.partition_id is not null;
end $$;
