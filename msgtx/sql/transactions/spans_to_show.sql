-- spans_to_show(name, topics) → where a transaction begins and ends on each partition of these topics (null: of all, and of
-- deleted ones). last_offset is null as long as it is undecided. Reads transaction_decision, transaction_partition,
-- partition.
create function msgtx.spans_to_show(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, topic_ids int[])
returns table (partition_id int, first_offset bigint, last_offset bigint) language sql stable as $$
    select x.partition_id, x.first_offset, x.last_offset
    from (
        select u.partition_id, u.first_offset, u.last_offset
        from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number) d
        cross join lateral unnest(d.partitions, d.first_offsets, d.last_offsets) u(partition_id, first_offset, last_offset)
        union all
        select tp.partition_id, tp.first_offset, null
        from msgtx.transaction_partition tp
        where tp.producer_id = in_producer_id and tp.producer_epoch = in_producer_epoch
          and tp.transaction_number = in_transaction_number
          and not exists (select from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number))) x
    where topic_ids is null
       or (select p.topic_id from msgtx.partition p where p.partition_id = x.partition_id) = any(topic_ids)
$$;
