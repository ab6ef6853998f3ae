-- producer_sequences(producer, most) → the last sequence of a producer on each partition of its newest transaction, of those
-- that the caller may see; from the log, or from what retention has noted of it. Null: the partition knows it no more.
-- Reads transaction, transaction_decision, record_batch, producer_state, topic, partition.
-- right: consume, observe
-- null: producer_epoch, last_sequence, last_offset, appended_at
-- plan: look-ups, nested loops
create function msgtx.producer_sequences(in_producer_id bigint, most int)
returns table (
    topic text, partition_index int, producer_epoch int, last_sequence bigint, last_offset bigint, appended_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    newest record;
begin
    select n.* into newest
    from (
        (select t.producer_epoch, t.transaction_number from msgtx.transaction t
         where t.producer_id = in_producer_id order by t.producer_epoch desc, t.transaction_number desc limit 1)
        union all
        (select d.producer_epoch, d.transaction_number from msgtx.transaction_decision d
         where d.producer_id = in_producer_id order by d.producer_epoch desc, d.transaction_number desc limit 1)) n
    order by n.producer_epoch desc, n.transaction_number desc limit 1;
    return query
    select t.name, p.partition_index, coalesce(b.producer_epoch, k.producer_epoch),
           coalesce(b.last_sequence, k.last_sequence), coalesce(b.last_offset, k.last_offset),
           coalesce(b.appended_at, k.appended_at)
    from (select s.partition_id
          from msgtx.spans_to_show(in_producer_id, newest.producer_epoch, newest.transaction_number, visible) s
          order by s.partition_id limit most) s
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = s.partition_id limit 1) p
    cross join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    left join lateral (
        select b.* from msgtx.record_batch b
        where b.partition_id = s.partition_id and b.producer_id = in_producer_id
        order by b.producer_epoch desc, b.base_sequence desc limit 1) b on true
    left join lateral (
        select k.* from msgtx.producer_state k
        where k.partition_id = s.partition_id and k.producer_id = in_producer_id limit 1) k on b.partition_id is null
    order by s.partition_id;
end $$;
