-- decisions_from(first, last, most, topics) → the decisions about transactions with records in [first, last), in order of
-- time; counts: whether one has records in these topics (null: in any). Reads transaction_decision, partition.
create function msgtx.decisions_from(first timestamptz, last timestamptz, most int, topics int[])
returns table (outcome text, decided_at timestamptz, counts boolean) language sql stable as $$
    select d.outcome, d.decided_at, topics is null or exists (
        select from unnest(d.partitions) u(id)
        where (select p.topic_id from msgtx.partition p where p.partition_id = u.id) = any(topics))
    from (
        select d.outcome, d.decided_at, d.partitions from msgtx.transaction_decision d
        where d.partitions <> '{}' and d.decided_at >= first and d.decided_at < last
        order by d.decided_at limit most) d
$$;
