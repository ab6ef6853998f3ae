-- describe_topics(names) → a row for each of these topics (null: of all) on which the caller has any right, in order of
-- their names.
--   partition_ids   in order of their indexes
--   settings        by name: a later version may have more of them.
-- right: any
create function msgtx.describe_topics(names text[] default null)
returns table (name text, partition_ids int[], settings jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select t.name, p.ids, to_jsonb(t) - '{topic_id,name,created_at}'::text[]
    from msgtx.topic t
    cross join lateral (
        select array_agg(p.partition_id order by p.partition_index) as ids
        from msgtx.partition p where p.topic_id = t.topic_id) p
    where (names is null or t.name = any(names))
      and coalesce(t.topic_id = any((select msgtx.topics_of_caller('{produce,consume,observe}'))::int[]), true)
    order by t.name;
end $$;
