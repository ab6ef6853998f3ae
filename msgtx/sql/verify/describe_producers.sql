-- describe_producers(partition, after, most) → the producers that this partition knows, ascending, from the id after
-- `after`: newest epoch, sequence and time of writing; the coordinator epoch of the newest marker here (−1: none); where the
-- open transaction begins here (null: none is open). One index probe per producer, not one look at each of its rows.
-- Reads record_batch, producer_state, transaction_marker, transaction_decision, transaction_partition.
-- right: observe
-- null: producer_epoch, last_sequence, transaction_start_offset
-- plan: look-ups, nested loops
create function msgtx.describe_producers(in_partition_id int, after_producer_id bigint default -1, most int default 1000)
returns table (
    producer_id bigint, producer_epoch int, last_sequence bigint, last_timestamp timestamptz, coordinator_epoch int,
    transaction_start_offset bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{observe}', array[in_partition_id]);
    return query
    with recursive known(producer_id, position) as (
        select after_producer_id, 0
        union all
        select least(
                   (select r.producer_id from msgtx.record_batch r
                    where r.partition_id = in_partition_id and r.producer_id > k.producer_id
                    order by r.producer_id limit 1),
                   (select s.producer_id from msgtx.producer_state s
                    where s.partition_id = in_partition_id and s.producer_id > k.producer_id
                    order by s.producer_id limit 1)),
               k.position + 1
        from known k where k.producer_id is not null and k.position < most)
    select k.producer_id, coalesce(newest.producer_epoch, kept.producer_epoch),
           coalesce(newest.last_sequence, kept.last_sequence), coalesce(newest.appended_at, kept.appended_at),
           coalesce(marker.coordinator_epoch, -1), begun.first_offset
    from known k
    left join lateral (
        select r.producer_epoch, r.last_sequence, r.appended_at, r.transaction_number from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.producer_id = k.producer_id
        order by r.producer_epoch desc, r.base_sequence desc limit 1) newest on true
    left join lateral (
        select s.producer_epoch, s.last_sequence, s.appended_at from msgtx.producer_state s
        where s.partition_id = in_partition_id and s.producer_id = k.producer_id limit 1) kept on newest.appended_at is null
    left join lateral (
        select m.coordinator_epoch from msgtx.transaction_marker m
        where m.partition_id = in_partition_id and m.producer_id = k.producer_id
        order by m.producer_epoch desc, m.transaction_number desc limit 1) marker on true
    left join lateral (
        select tp.first_offset from msgtx.transaction_partition tp
        where tp.producer_id = k.producer_id and tp.producer_epoch = newest.producer_epoch
          and tp.transaction_number = newest.transaction_number and tp.partition_id = in_partition_id
          and not exists (
              select from msgtx.decision_of(k.producer_id, newest.producer_epoch, newest.transaction_number))
        limit 1) begun on true
    where k.position > 0 and k.producer_id is not null
    order by k.producer_id;
end $$;
