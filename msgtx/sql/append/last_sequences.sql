-- last_sequences(producer, partitions) → the last stored sequence of this producer id and epoch on each partition, in
-- their order; −1 where there is none; null where the partition is gone (its topic was deleted). in_number: only of
-- this transaction. Reads partition, record_batch, producer_state.
create function msgtx.last_sequences(
    in_producer_id bigint, in_producer_epoch int, in_number bigint, partition_ids int[]
) returns bigint[] language plpgsql volatile as $$
begin
    return (
        select coalesce(array_agg(
            case when p.partition_id is not null then coalesce(newest.last_sequence, kept.last_sequence, -1) end
            order by asked.ordinal), '{}')
        from unnest(partition_ids) with ordinality asked(partition_id, ordinal)
        left join lateral (select p.* from msgtx.partition p where p.partition_id = asked.partition_id limit 1) p on true
        left join lateral (
            select r.last_sequence, r.transaction_number from msgtx.record_batch r
            where r.partition_id = asked.partition_id and r.producer_id = in_producer_id
              and r.producer_epoch = in_producer_epoch
            order by r.base_sequence desc limit 1) newest on in_number is null or newest.transaction_number = in_number
        left join lateral (
            select k.last_sequence from msgtx.producer_state k
            where k.partition_id = asked.partition_id and k.producer_id = in_producer_id
              and k.producer_epoch = in_producer_epoch limit 1) kept on in_number is null);
end $$;
