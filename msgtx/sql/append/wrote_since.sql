-- wrote_since(producer_id, since, partitions) → whether a producer has appended to one of these partitions since then, also
-- if retention has kept no more of that than its state.
-- Reads record_batch, producer_state: an index probe in each for each partition.
-- plan: look-ups, nested loops
create function msgtx.wrote_since(in_producer_id bigint, since timestamptz, partitions int[]) returns boolean
language plpgsql stable as $$
begin
    return exists (
        select from unnest(partitions) q(partition_id)
        left join lateral (
            select r.appended_at from msgtx.record_batch r
            where r.partition_id = q.partition_id and r.producer_id = in_producer_id
            order by r.producer_epoch desc, r.base_sequence desc limit 1) newest on true
        left join lateral (
            select s.appended_at from msgtx.producer_state s
            where s.partition_id = q.partition_id and s.producer_id = in_producer_id limit 1) kept on true
        where greatest(newest.appended_at, kept.appended_at) >= since);
end $$;
