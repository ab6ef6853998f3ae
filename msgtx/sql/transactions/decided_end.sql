-- decided_end(partition) → where on a partition the first undecided transaction begins, else the log end (0 if no row is
-- there): all rows in front of it are committed or aborted for good. The last stable offset, unless the log start was moved
-- past an open transaction (delete_records). It stays true: later transactions begin behind it.
-- Reads record_batch, partition_floor, transaction_partition, transaction_decision.
-- plan: look-ups, nested loops, in order
create function msgtx.decided_end(in_partition_id int) returns bigint language plpgsql stable as $$
begin
    return (
        select least(blocking.first_offset, coalesce(tail.next_offset, 0))
        from (select in_partition_id as partition_id offset 0) asked
        left join lateral (
            select r.last_offset + 1 as next_offset from msgtx.last_row_of(asked.partition_id) r) tail on true
        left join lateral msgtx.floor_of(asked.partition_id) floor on true
        left join lateral (
            select tp.first_offset from msgtx.transaction_partition tp
            where tp.partition_id = asked.partition_id and tp.first_offset >= coalesce(floor.stable_floor, 0)
              and not exists (select from msgtx.decision_of(tp.producer_id, tp.producer_epoch, tp.transaction_number))
            order by tp.first_offset limit 1) blocking on true);
end $$;
