-- remove_decided_seals(after, most) removes the seals of transactions that are decided, after looking at `most` of
-- them: a decision needs its seal no more, and the search for prepared transactions reads every seal. The offsets that
-- waited for an ABORT go with it.
-- Locks the leases (share); passes by rows that are locked. Reads transaction_decision, producer. Deletes from
-- transaction_seal, group_offset. Not flushed by itself.
-- right: admin of all topics
-- commit: asynchronous
-- plan: look-ups, nested loops
create function msgtx.remove_decided_seals(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    ids bigint[];
    sealed_epochs int[];
    numbers bigint[];
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.require_leases(shards, epochs);
    select array_agg(s.producer_id), array_agg(s.producer_epoch), array_agg(s.transaction_number)
    into ids, sealed_epochs, numbers
    from (
        select s.producer_id, s.producer_epoch, s.transaction_number from msgtx.transaction_seal s
        where in_after is null
           or (s.producer_id, s.producer_epoch, s.transaction_number) > (in_after[1], in_after[2]::int, in_after[3])
        order by s.producer_id, s.producer_epoch, s.transaction_number limit most) s;
    if cardinality(ids) = most then
        next_after := array[ids[most], sealed_epochs[most], numbers[most]];
    end if;
    with gone as (
        delete from msgtx.transaction_seal s
        where s.ctid = any(array(
            select x.ctid from unnest(ids, sealed_epochs, numbers) a(producer_id, producer_epoch, transaction_number)
            cross join lateral (
                select x.ctid from msgtx.transaction_seal x
                where x.producer_id = a.producer_id and x.producer_epoch = a.producer_epoch
                  and x.transaction_number = a.transaction_number
                  and exists (select from msgtx.decision_of(x.producer_id, x.producer_epoch, x.transaction_number))
                limit 1 for update skip locked) x
            where shards is null or coalesce((select p.shard from msgtx.producer p where p.producer_id = a.producer_id),
                                             a.producer_id % 50) = any(shards)))
        returning s.*),
    undone as (
        delete from msgtx.group_offset o where o.ctid = any(array(
            select x.ctid
            from gone g
            cross join lateral unnest(g.group_ids, g.group_partitions, g.commit_sequences)
                w(group_id, partition_id, commit_sequence)
            cross join lateral (
                select x.ctid from msgtx.group_offset x
                where x.group_id = w.group_id and x.partition_id = w.partition_id
                  and x.commit_sequence = w.commit_sequence limit 1) x
            cross join lateral msgtx.decision_of(g.producer_id, g.producer_epoch, g.transaction_number) d
            where d.outcome = 'ABORT')))
    select count(*) into removed from gone;
end $$;
