-- decided_here(partition, name) → how a transaction was decided, and its offsets on this partition; no row: it is undecided,
-- or its history is gone. Reads transaction_decision.
create function msgtx.decided_here(in_partition_id int, in_producer_id bigint, in_epoch int, in_number bigint)
returns table (outcome text, first_offset bigint, last_offset bigint) language sql stable as $$
    select d.outcome, d.first_offsets[array_position(d.partitions, in_partition_id)],
           d.last_offsets[array_position(d.partitions, in_partition_id)]
    from msgtx.decision_of(in_producer_id, in_epoch, in_number) d
$$;
