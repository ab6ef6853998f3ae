-- decided_offset_of(group_id, partition) → a group's decided offset in a partition, and its metadata. pending: a newer one
-- is sealed and undecided. No row: there is neither. A row counts unless its transaction is decided ABORT, or sealed and
-- undecided. Reads group_offset, transaction_decision, transaction_seal.
create function msgtx.decided_offset_of(in_group_id int, in_partition_id int)
returns table (committed_offset bigint, metadata text, pending boolean) language sql stable as $$
    select newest.committed_offset, newest.metadata, coalesce(waiting.pending, false)
    from (select 1) one
    left join lateral msgtx.newest_offset_of(in_group_id, in_partition_id) newest on true
    left join lateral (
        select true as pending from msgtx.group_offset o
        where o.group_id = in_group_id and o.partition_id = in_partition_id
          and o.commit_sequence > coalesce(newest.commit_sequence, 0)
          and exists (select from msgtx.seal_of(o.producer_id, o.producer_epoch, o.transaction_number))
          and not exists (select from msgtx.decision_of(o.producer_id, o.producer_epoch, o.transaction_number))
        limit 1) waiting on true
    where newest.commit_sequence is not null or waiting.pending
$$;
