-- share_group_names() → the names of all share groups.
-- Reads consumer_group, share_group.
-- right: admin of all topics
create function msgtx.share_group_names() returns table (group_name text) language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select c.name from msgtx.share_group s join msgtx.consumer_group c on c.group_id = s.group_id order by c.name
$$;
