-- remove_decided_seals(after, most) removes the seals of transactions that are decided, at most so many: a decision needs its seal
-- no more, and what looks for prepared transactions reads every seal there is. The offsets that waited for an ABORT go with it.
--   in_after, next_after   null: this was the end; else there is more
--   shards, epochs         those of a coordinator; null: all
-- Locks the leases (share); passes by rows that are locked. Reads transaction_decision, producer. Deletes from transaction_seal,
-- group_offset. Not flushed by itself.
create function msgtx.remove_decided_seals(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s'
set jit = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    with gone as (
        delete from msgtx.transaction_seal s
        where (s.producer_id, s.producer_epoch, s.transaction_number) in (
            select x.producer_id, x.producer_epoch, x.transaction_number from msgtx.transaction_seal x
            where exists (select from msgtx.transaction_decision d
                          where d.producer_id = x.producer_id and d.producer_epoch = x.producer_epoch
                            and d.transaction_number = x.transaction_number)
              and (shards is null or coalesce((select p.shard from msgtx.producer p where p.producer_id = x.producer_id),
                                              x.producer_id % 50) = any(shards))
            limit most for update skip locked)
        returning s.*),
    undone as (
        delete from msgtx.group_offset o using (
            select w.group_id, w.partition_id, w.commit_sequence
            from gone g
            join msgtx.transaction_decision d on d.producer_id = g.producer_id and d.producer_epoch = g.producer_epoch
                and d.transaction_number = g.transaction_number and d.outcome = 'ABORT'
            cross join lateral unnest(g.group_ids, g.group_partitions, g.commit_sequences)
                w(group_id, partition_id, commit_sequence)) w
        where o.group_id = w.group_id and o.partition_id = w.partition_id and o.commit_sequence = w.commit_sequence)
    select count(*) into removed from gone;
    next_after := case when removed >= most then array[removed] end;
end $$;
