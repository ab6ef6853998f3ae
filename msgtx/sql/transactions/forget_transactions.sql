-- forget_transactions(decisions) removes the rows of decided transactions; → how many transactions. Offsets of a COMMIT stay; those
-- of an ABORT, pending until then, go. An ABORT marker stays while a batch of its transaction is in the log: below the floor it is
-- what hides it (P29). The caller holds the marking lock and knows that all of them are below the floors.
-- Reads record_batch. Deletes from transaction, transaction_partition, transaction_seal, transaction_decision,
-- transaction_marker, group_offset.
create function msgtx.forget_transactions(decisions msgtx.transaction_decision[]) returns int language plpgsql volatile
set jit = off set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    forgotten int;
    sealed msgtx.transaction_decision[];
begin
    sealed := array(
        select d from unnest(decisions) d
        join msgtx.transaction_seal s on s.producer_id = d.producer_id and s.producer_epoch = d.producer_epoch
            and s.transaction_number = d.transaction_number
        where d.outcome = 'ABORT');
    if sealed <> '{}' then  -- the others' offsets were never inserted
        delete from msgtx.group_offset o using unnest(sealed) d
        where o.producer_id = d.producer_id and o.producer_epoch = d.producer_epoch
          and o.transaction_number = d.transaction_number;
    end if;
    delete from msgtx.transaction_marker m
    using unnest(decisions) d cross join lateral unnest(d.partitions) s(partition_id)
    where m.partition_id = s.partition_id and m.producer_id = d.producer_id and m.producer_epoch = d.producer_epoch
      and m.transaction_number = d.transaction_number
      and (m.outcome = 'COMMIT' or (
          -- Retention removes from the front, so the last batch is the last to go.
          select r.last_offset from msgtx.record_batch r
          where r.partition_id = m.partition_id and r.base_offset <= m.last_offset
          order by r.base_offset desc limit 1) >= m.last_offset is not true);
    delete from msgtx.transaction_partition tp using unnest(decisions) d
    where tp.producer_id = d.producer_id and tp.producer_epoch = d.producer_epoch
      and tp.transaction_number = d.transaction_number;
    delete from msgtx.transaction_seal s using unnest(decisions) d
    where s.producer_id = d.producer_id and s.producer_epoch = d.producer_epoch
      and s.transaction_number = d.transaction_number;
    delete from msgtx.transaction t using unnest(decisions) d
    where t.producer_id = d.producer_id and t.producer_epoch = d.producer_epoch
      and t.transaction_number = d.transaction_number;
    delete from msgtx.transaction_decision o using unnest(decisions) d
    where o.producer_id = d.producer_id and o.producer_epoch = d.producer_epoch
      and o.transaction_number = d.transaction_number;
    get diagnostics forgotten = row_count;
    return forgotten;
end $$;
