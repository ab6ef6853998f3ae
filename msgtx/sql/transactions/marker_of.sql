-- marker_of(partition, name) → the marker of a transaction on a partition, if it has one. Reads transaction_marker.
create function msgtx.marker_of(in_partition_id int, in_producer_id bigint, in_epoch int, in_number bigint)
returns setof msgtx.transaction_marker language sql stable as $$
    select m.* from msgtx.transaction_marker m
    where m.partition_id = in_partition_id and m.producer_id = in_producer_id and m.producer_epoch = in_epoch
      and m.transaction_number = in_number limit 1
$$;
