-- View transactions: each producer that has a transactional id or transactions, with its newest transaction and the
-- state as Kafka names it (internals: transactions#states). A transaction is complete when each of its partitions has
-- its marker, or its floor is above it. A role that may not consume (or observe) every topic sees transactions on
-- topics of its own, and their partitions there. A transactional id that it may not use is
-- null, unless it may observe every topic.
-- right: consume, observe
create view msgtx.transactions with (security_barrier) as
select case
           when (select msgtx.topics_of_caller('{observe}')) is null or (select msgtx.may_use('transactional_id', null))
               or msgtx.may_use('transactional_id', p.transactional_id)
           then p.transactional_id end as transactional_id,
       p.producer_id, p.epoch as current_epoch, n.producer_epoch, n.transaction_number,
       case
           when n.transaction_number is null then 'Empty'
           when n.outcome is null then case when n.sealed then 'Prepared' else 'Ongoing' end
           when not n.complete then case when n.outcome = 'COMMIT' then 'PrepareCommit' else 'PrepareAbort' end
           when n.producer_epoch < p.epoch then 'Empty'
           when n.outcome = 'COMMIT' then 'CompleteCommit'
           else 'CompleteAbort' end as state,
       coalesce(n.timeout_ms, p.timeout_ms) as timeout_ms, n.opened_at, n.decided_at, n.decided_by,
       n.client_host, n.client_process, n.database_backend, coalesce(seen.partitions, n.partitions, '{}') as partitions,
       coalesce(seen.first_offsets, n.first_offsets, '{}') as first_offsets, p.initialized_at
from msgtx.producer p
-- Two probes, and each further look only where it is needed: this is read for every producer there is.
left join lateral (
    select t.* from msgtx.transaction t where t.producer_id = p.producer_id
    order by t.producer_epoch desc, t.transaction_number desc limit 1) t on true
left join lateral (
    select d.* from msgtx.transaction_decision d where d.producer_id = p.producer_id
      and (t.producer_id is null or (d.producer_epoch, d.transaction_number) >= (t.producer_epoch, t.transaction_number))
    order by d.producer_epoch desc, d.transaction_number desc limit 1) d on true
left join lateral (
    select coalesce(d.producer_epoch, t.producer_epoch) as producer_epoch,
           coalesce(d.transaction_number, t.transaction_number) as transaction_number,
           o.opened_at, o.timeout_ms, o.client_host, o.client_process, o.database_backend,
           d.outcome, d.decided_at, d.decided_by,
           d.producer_id is null and (
               select true from msgtx.transaction_seal s
               where s.producer_id = p.producer_id and s.producer_epoch = t.producer_epoch
                 and s.transaction_number = t.transaction_number) is not null as sealed,
           case when d.producer_id is not null then d.partitions else array(
               select tp.partition_id from msgtx.transaction_partition tp
               where tp.producer_id = p.producer_id and tp.producer_epoch = t.producer_epoch
                 and tp.transaction_number = t.transaction_number order by tp.partition_id) end as partitions,
           case when d.producer_id is not null then d.first_offsets else array(
               select tp.first_offset from msgtx.transaction_partition tp
               where tp.producer_id = p.producer_id and tp.producer_epoch = t.producer_epoch
                 and tp.transaction_number = t.transaction_number order by tp.partition_id) end as first_offsets,
           d.producer_id is not null and not exists (
               select from unnest(d.partitions, d.last_offsets) x(partition_id, last_offset)
               where (select true from msgtx.partition known where known.partition_id = x.partition_id)
                 and (select true from msgtx.transaction_marker m
                      where m.partition_id = x.partition_id and m.producer_id = p.producer_id
                        and m.producer_epoch = d.producer_epoch and m.transaction_number = d.transaction_number) is null
                 and (select true from msgtx.partition_floor f
                      where f.partition_id = x.partition_id and f.stable_floor > x.last_offset limit 1) is null) as complete
    from (select 1) one
    left join lateral (
        select t.opened_at, t.timeout_ms, t.client_host, t.client_process, t.database_backend
        where d.producer_id is null
           or (t.producer_epoch, t.transaction_number) = (d.producer_epoch, d.transaction_number)) o on true
    where t.producer_id is not null or d.producer_id is not null) n on true
left join lateral (
    select case when (select msgtx.topics_of_caller('{consume,observe}')) is not null then array(
               select x.partition_id
               from unnest(n.partitions) with ordinality x(partition_id, ordinal)
               where (select k.topic_id from msgtx.partition k where k.partition_id = x.partition_id)
                   = any((select msgtx.topics_of_caller('{consume,observe}'))::int[])
               order by x.ordinal) end as partitions) visible on true
left join lateral (
    select nullif(visible.partitions, '{}') as partitions,
           case when visible.partitions <> '{}' then array(
               select x.first_offset
               from unnest(n.partitions, n.first_offsets) with ordinality x(partition_id, first_offset, ordinal)
               where x.partition_id = any(visible.partitions) order by x.ordinal) end as first_offsets) seen on true
where (p.transactional_id is not null or n.transaction_number is not null)
  and (seen.partitions is not null or (select msgtx.topics_of_caller('{consume,observe}')) is null);
