-- spans_of(name, partitions) → where a committed transaction has records: on all of its partitions, or, when its history is
-- gone, on those of these partitions; partitions: how many it has, null when that is not known. Reads record_batch,
-- transaction, transaction_decision, transaction_marker.
create function msgtx.spans_of(in_producer_id bigint, in_epoch int, in_number bigint, ids int[])
returns table (id int, first_offset bigint, last_offset bigint, partitions int) language sql stable as $$
    select s.id, s.first_offset, s.last_offset, cardinality(d.partitions)
    from msgtx.decision_of(in_producer_id, in_epoch, in_number) d
    cross join lateral unnest(d.partitions, d.first_offsets, d.last_offsets) s(id, first_offset, last_offset)
    where d.outcome = 'COMMIT'
    union all
    -- It was decided long ago, and its rows show where it is.
    select u.id, gone.first_offset, gone.last_offset, null
    from unnest(ids) u(id)
    cross join lateral (
        select min(r.base_offset) as first_offset, max(r.last_offset) as last_offset from msgtx.record_batch r
        where r.partition_id = u.id and r.producer_id = in_producer_id and r.producer_epoch = in_epoch
          and r.transaction_number = in_number) gone
    where gone.first_offset is not null
      and not exists (select from msgtx.decision_of(in_producer_id, in_epoch, in_number))
      and not exists (select from msgtx.transaction_of(in_producer_id, in_epoch, in_number))
      and not exists (
          select from msgtx.marker_of(u.id, in_producer_id, in_epoch, in_number) m where m.outcome = 'ABORT')
$$;
