-- mirror_places(name) → how far a mirror has copied each partition of its source, in their order. Reads mirror_place.
-- right: observe of all topics
create function msgtx.mirror_places(in_name text)
returns table (topic text, partition int, next_offset bigint, topic_identity text, row_identity text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select p.topic_name, p.partition_index, p.next_offset, p.topic_identity, p.row_identity
    from msgtx.mirror_place p where p.mirror_name = in_name order by p.topic_name, p.partition_index
$$;
