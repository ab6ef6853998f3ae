-- transaction_spans(name) → where an undecided transaction begins on each partition, and its last row there: partitions
-- ascending. The caller holds the producer's lock exclusively. Reads transaction_partition, record_batch. OFFSET 0: an
-- aggregate with ORDER BY (PostgreSQL 16 and later) would choose the index with its order, and read all of it if the table
-- is empty by its statistics.
create function msgtx.transaction_spans(in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint)
returns table (partitions int[], first_offsets bigint[], last_offsets bigint[]) language sql stable as $$
    select coalesce(array_agg(tp.partition_id order by tp.partition_id), '{}'),
           coalesce(array_agg(tp.first_offset order by tp.partition_id), '{}'),
           coalesce(array_agg(coalesce(newest.last_offset, tp.first_offset) order by tp.partition_id), '{}')
    from (
        select tp.partition_id, tp.first_offset from msgtx.transaction_partition tp
        where tp.producer_id = in_producer_id and tp.producer_epoch = in_producer_epoch
          and tp.transaction_number = in_transaction_number
        offset 0) tp
    left join lateral (
        select r.last_offset from msgtx.record_batch r
        where r.partition_id = tp.partition_id and r.producer_id = in_producer_id
          and r.producer_epoch = in_producer_epoch and r.transaction_number = in_transaction_number
        order by r.base_sequence desc limit 1) newest on true
$$;
