-- keep_producers(partition, upto) notes the last sequence of each producer whose newest row in this partition is to be
-- removed, with all rows up to this offset: repeated batches are recognised as duplicates until producer_id_expiration_ms
-- after it was appended. Reads record_batch. Writes producer_state.
-- plan: look-ups, nested loops
create function msgtx.keep_producers(in_partition_id int, upto bigint) returns boolean language plpgsql volatile as $$
begin
    insert into msgtx.producer_state (
        partition_id, producer_id, producer_epoch, last_sequence, last_offset, appended_at)
    select in_partition_id, newest.producer_id, newest.producer_epoch, newest.last_sequence, newest.last_offset,
           newest.appended_at
    from (
        select distinct r.producer_id from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.base_offset <= upto and r.producer_id is not null) gone
    cross join lateral (
        select r.* from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.producer_id = gone.producer_id
        order by r.producer_epoch desc, r.base_sequence desc limit 1) newest
    where newest.base_offset <= upto
      and newest.appended_at >= msgtx.clock() - msgtx.setting_value('producer_id_expiration_ms') * interval '1 ms'
    order by newest.producer_id
    on conflict (partition_id, producer_id) do update
    set producer_epoch = excluded.producer_epoch, last_sequence = excluded.last_sequence,
        last_offset = excluded.last_offset, appended_at = excluded.appended_at;
    return true;
end $$;
