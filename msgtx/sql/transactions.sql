-- View transactions: each producer that has a transactional id or transactions, with its newest transaction and the state
-- as Kafka names it (semantics 4). A transaction is complete when each of its partitions has its marker, or its floor is
-- above it. Who may not consume (or administer) every topic sees transactions that touch topics on which he may, and of their
-- partitions those.
create view msgtx.transactions with (security_barrier) as
select p.transactional_id, p.producer_id, p.epoch as current_epoch, n.producer_epoch, n.transaction_number,
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
left join lateral (
    select k.producer_epoch, k.transaction_number, t.opened_at, t.timeout_ms, t.client_host, t.client_process,
           t.database_backend, d.outcome, d.decided_at, d.decided_by,
           exists (
               select from msgtx.transaction_seal s
               where s.producer_id = p.producer_id and s.producer_epoch = k.producer_epoch
                 and s.transaction_number = k.transaction_number) as sealed,
           coalesce(d.partitions, o.partitions) as partitions,
           coalesce(d.first_offsets, o.first_offsets) as first_offsets,
           not exists (
               select from unnest(d.partitions, d.last_offsets) x(partition_id, last_offset)
               join msgtx.partition known on known.partition_id = x.partition_id
               where not exists (
                   select from msgtx.transaction_marker m
                   where m.partition_id = x.partition_id and m.producer_id = p.producer_id
                     and m.producer_epoch = k.producer_epoch and m.transaction_number = k.transaction_number)
                 and not exists (
                   select from msgtx.partition_floor f
                   where f.partition_id = x.partition_id and f.stable_floor > x.last_offset)) as complete
    from (
        (select t.producer_epoch, t.transaction_number from msgtx.transaction t
         where t.producer_id = p.producer_id order by t.producer_epoch desc, t.transaction_number desc limit 1)
        union
        (select d.producer_epoch, d.transaction_number from msgtx.transaction_decision d
         where d.producer_id = p.producer_id order by d.producer_epoch desc, d.transaction_number desc limit 1)
        order by producer_epoch desc, transaction_number desc limit 1) k
    left join msgtx.transaction t on t.producer_id = p.producer_id
        and t.producer_epoch = k.producer_epoch and t.transaction_number = k.transaction_number
    left join msgtx.transaction_decision d on d.producer_id = p.producer_id
        and d.producer_epoch = k.producer_epoch and d.transaction_number = k.transaction_number
    left join lateral (
        select array_agg(tp.partition_id order by tp.partition_id) as partitions,
               array_agg(tp.first_offset order by tp.partition_id) as first_offsets
        from msgtx.transaction_partition tp
        where tp.producer_id = p.producer_id and tp.producer_epoch = k.producer_epoch
          and tp.transaction_number = k.transaction_number and d.outcome is null) o on true) n on true
left join lateral (
    select array_agg(x.partition_id order by x.ordinal) as partitions,
           array_agg(x.first_offset order by x.ordinal) as first_offsets
    from unnest(n.partitions, n.first_offsets) with ordinality x(partition_id, first_offset, ordinal)
    join msgtx.partition known on known.partition_id = x.partition_id
    where (select msgtx.topics_of_caller('{consume,admin}')) is not null
      and known.topic_id = any((select msgtx.topics_of_caller('{consume,admin}'))::int[])) seen on true
where (p.transactional_id is not null or n.transaction_number is not null)
  and (seen.partitions is not null or (select msgtx.topics_of_caller('{consume,admin}')) is null);
