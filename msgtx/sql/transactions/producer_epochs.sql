-- producer_epochs(producer, before, most) → the epochs of a producer that have stored transactions, and the current one; the
-- newest first, from the one below `before` on (null: from the newest). No row: the view transactions does not show it.
--   first_…, last_…           the first and last stored transaction of the epoch; null: none that the caller may see
--   committed, aborted        of the last 20,000 / most of the epoch, from counted_from on
--   client_host, …_process    of the first one with a client that is known
--   epoch_before              of the current epoch: its producer raised it by itself from there
-- Reads transactions, producer, partition.
-- right: consume, observe
-- null: transactional_id, epoch_before, first_number, first_at, last_number, last_at, last_outcome, last_decided_by
-- null: client_host, client_process, counted_from
-- plan: look-ups, nested loops
create function msgtx.producer_epochs(in_producer_id bigint, before int, most int)
returns table (
    transactional_id text, current_epoch int, epoch_before int, timeout_ms int, initialized_at timestamptz, epoch int,
    first_number bigint, first_at timestamptz, last_number bigint, last_at timestamptz, last_outcome text,
    last_decided_by text, client_host text, client_process int, committed bigint, aborted bigint, counted_from bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    counted_at_most constant int := greatest(20000 / most, 1);
begin
    return query
    with recursive epochs(epoch, place) as (
        select coalesce(before, 2147483647), 0
        union all
        select greatest(
                   (select d.producer_epoch from msgtx.transaction_decision d
                    where d.producer_id = in_producer_id and d.producer_epoch < e.epoch
                    order by d.producer_epoch desc, d.transaction_number desc limit 1),
                   (select t.producer_epoch from msgtx.transaction t
                    where t.producer_id = in_producer_id and t.producer_epoch < e.epoch
                    order by t.producer_epoch desc, t.transaction_number desc limit 1),
                   (select p.epoch from msgtx.producer p where p.producer_id = in_producer_id and p.epoch < e.epoch)),
               e.place + 1
        from epochs e where e.epoch is not null and e.place < most)
    select v.transactional_id, p.epoch, p.epoch_before, p.timeout_ms, p.initialized_at, e.epoch, oldest.transaction_number,
           oldest.at, newest.transaction_number, newest.at, newest.outcome, newest.decided_by, opened.client_host,
           opened.client_process, coalesce(counted.committed, 0), coalesce(counted.aborted, 0), counted.counted_from
    from (select w.* from msgtx.transactions w where w.producer_id = in_producer_id) v
    cross join lateral (select p.* from msgtx.producer p where p.producer_id = in_producer_id limit 1) p
    cross join epochs e
    left join lateral (
        select f.transaction_number, coalesce(t.opened_at, d.decided_at) as at
        from (select least(
                         (select d.transaction_number from msgtx.transaction_decision d
                          where d.producer_id = in_producer_id and d.producer_epoch = e.epoch
                          order by d.transaction_number limit 1),
                         (select t.transaction_number from msgtx.transaction t
                          where t.producer_id = in_producer_id and t.producer_epoch = e.epoch
                          order by t.transaction_number limit 1)) as transaction_number offset 0) f
        left join lateral msgtx.transaction_of(in_producer_id, e.epoch, f.transaction_number) t on true
        left join lateral msgtx.decision_of(in_producer_id, e.epoch, f.transaction_number) d on true
        where f.transaction_number is not null and (visible is null or exists (
            select from msgtx.spans_to_show(in_producer_id, e.epoch, f.transaction_number, visible)))) oldest on true
    left join lateral (
        select f.transaction_number, coalesce(d.decided_at, t.opened_at) as at, d.outcome, d.decided_by
        from (select greatest(
                         (select d.transaction_number from msgtx.transaction_decision d
                          where d.producer_id = in_producer_id and d.producer_epoch = e.epoch
                          order by d.transaction_number desc limit 1),
                         (select t.transaction_number from msgtx.transaction t
                          where t.producer_id = in_producer_id and t.producer_epoch = e.epoch
                          order by t.transaction_number desc limit 1)) as transaction_number offset 0) f
        left join lateral msgtx.transaction_of(in_producer_id, e.epoch, f.transaction_number) t on true
        left join lateral msgtx.decision_of(in_producer_id, e.epoch, f.transaction_number) d on true
        where f.transaction_number is not null and (visible is null or exists (
            select from msgtx.spans_to_show(in_producer_id, e.epoch, f.transaction_number, visible)))) newest on true
    left join lateral (
        select t.client_host, t.client_process
        from (select t.* from msgtx.transaction t
              where t.producer_id = in_producer_id and t.producer_epoch = e.epoch
              order by t.transaction_number limit 100) t
        where t.client_host is not null order by t.transaction_number limit 1) opened on true
    left join lateral (
        select count(*) filter (where d.outcome = 'COMMIT') as committed,
               count(*) filter (where d.outcome = 'ABORT') as aborted, min(d.transaction_number) as counted_from
        from (select d.* from msgtx.transaction_decision d
              where d.producer_id = in_producer_id and d.producer_epoch = e.epoch
              order by d.transaction_number desc limit counted_at_most) d
        where visible is null or exists (
            select from unnest(d.partitions) x(partition_id)
            where (select k.topic_id from msgtx.partition k where k.partition_id = x.partition_id) = any(visible))) counted
        on true
    where e.place > 0 and e.epoch is not null
    order by e.epoch desc;
end $$;
