-- forget_transactions(decisions) removes the rows of decided transactions; → how many transactions. Offsets of a COMMIT
-- stay; those of an ABORT, pending until then, go. An ABORT marker stays while a batch of its transaction is in the log:
-- below the floor the marker hides the batch (P29). The caller holds the marking lock and knows that all of them are below
-- the floors.
-- Reads record_batch. Deletes from transaction, transaction_partition, transaction_seal, transaction_decision,
-- transaction_marker, group_offset.
-- plan: look-ups, nested loops
create function msgtx.forget_transactions(decisions msgtx.transaction_decision[]) returns int language plpgsql volatile as $$
declare
    forgotten int;
    sealed msgtx.transaction_decision[];
    one msgtx.transaction_decision;
begin
    sealed := array(
        select d from unnest(decisions) d
        where d.outcome = 'ABORT'
          and exists (select from msgtx.seal_of(d.producer_id, d.producer_epoch, d.transaction_number)));
    if sealed <> '{}' then  -- the others' offsets were never inserted
        -- One pass over the table, and no join: a comparison with true is looked up in a hash.
        delete from msgtx.group_offset o
        where ((o.producer_id, o.producer_epoch, o.transaction_number) in (
            select d.producer_id, d.producer_epoch, d.transaction_number from unnest(sealed) d)) is true;
    end if;
    delete from msgtx.transaction_marker m where m.ctid = any(array(
        select x.ctid from unnest(decisions) d cross join lateral unnest(d.partitions) s(partition_id)
        cross join lateral (
            select x.ctid, x.outcome, x.last_offset from msgtx.transaction_marker x
            where x.partition_id = s.partition_id and x.producer_id = d.producer_id and x.producer_epoch = d.producer_epoch
              and x.transaction_number = d.transaction_number limit 1) x
        where x.outcome = 'COMMIT' or (
            -- Retention removes from the front, so the last batch is the last to go.
            select r.last_offset from msgtx.record_batch r
            where r.partition_id = s.partition_id and r.base_offset <= x.last_offset
            order by r.base_offset desc limit 1) >= x.last_offset is not true));
    -- By their names, one by one: a row of transaction may be changed in between (renew_attempts), and then has another
    -- place.
    forgotten := 0;
    foreach one in array decisions loop
        delete from msgtx.transaction_partition tp
        where tp.producer_id = one.producer_id and tp.producer_epoch = one.producer_epoch
          and tp.transaction_number = one.transaction_number;
        delete from msgtx.transaction_seal s
        where s.producer_id = one.producer_id and s.producer_epoch = one.producer_epoch
          and s.transaction_number = one.transaction_number;
        delete from msgtx.transaction t
        where t.producer_id = one.producer_id and t.producer_epoch = one.producer_epoch
          and t.transaction_number = one.transaction_number;
        delete from msgtx.transaction_decision o
        where o.producer_id = one.producer_id and o.producer_epoch = one.producer_epoch
          and o.transaction_number = one.transaction_number;
        forgotten := forgotten + found::int;
    end loop;
    return forgotten;
end $$;
