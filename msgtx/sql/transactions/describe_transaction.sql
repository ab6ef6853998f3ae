-- describe_transaction(transactional_id) → the row of view transactions for an id, found by its index, with the names of
-- its partitions; none for an unknown id, or where the view hides it. Reads producer, partition, topic.
-- right: consume, observe
-- null: client_host, decided_by, producer_epoch, transaction_number, opened_at, timeout_ms
create function msgtx.describe_transaction(in_transactional_id text)
returns table (
    producer_id bigint, current_epoch int, producer_epoch int, transaction_number bigint, state text, timeout_ms int,
    opened_at timestamptz, client_host text, decided_by text, topics text[], partition_indexes int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set jit = off as $$
#variable_conflict use_column
begin
    return query
    select v.producer_id, v.current_epoch, v.producer_epoch, v.transaction_number, v.state, v.timeout_ms, v.opened_at,
           v.client_host, v.decided_by, places.topics, places.indexes
    from msgtx.transactions v
    cross join lateral (
        select coalesce(array_agg(t.name order by u.ordinal), '{}') as topics,
               coalesce(array_agg(k.partition_index order by u.ordinal), '{}') as indexes
        from unnest(v.partitions) with ordinality u(partition_id, ordinal)
        cross join lateral (select k.* from msgtx.partition k where k.partition_id = u.partition_id limit 1) k
        cross join lateral (select t.* from msgtx.topic t where t.topic_id = k.topic_id limit 1) t) places
    where v.producer_id = (select p.producer_id from msgtx.producer p where p.transactional_id = in_transactional_id)
      and v.transactional_id = in_transactional_id;
end $$;
