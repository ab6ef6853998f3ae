-- fence_everybody(after, most) fences the producers that have a row, after a failover: each epoch rises, and open
-- transactions are aborted, except those prepared for an outside decision; → how many, after `most` producers.
--   in_after, next_after   where the last call came to: producer id; null: from the start, and: this was the end
-- Locks producers (exclusive, ascending). Reads transaction_seal, transaction_decision. Writes producer;
-- transaction_decision and markers through abort_undecided. Flushed.
-- right: owner
create function msgtx.fence_everybody(
    in_after bigint[] default null, most int default 500, out fenced int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    one record;
    ids bigint[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    fenced := 0;
    ignored := msgtx.flush_at_commit();
    ids := array(
        select p.producer_id from msgtx.producer p where p.producer_id > coalesce(in_after[1], -1)
        order by p.producer_id limit most);
    next_after := case when cardinality(ids) = most then array[ids[most]] end;
    for one in select i.producer_id from unnest(ids) i(producer_id) order by (i.producer_id << 32) >> 32 loop
        ignored := msgtx.lock_producer(one.producer_id);
        if not exists (select from msgtx.undecided_prepared(one.producer_id)) then
            ignored := msgtx.abort_undecided(one.producer_id, 'fence');
        end if;
        update msgtx.producer p set epoch = p.epoch + 1, epoch_before = null where p.producer_id = one.producer_id;
        fenced := fenced + 1;
    end loop;
end $$;
