-- share_group_names() → the names of the share groups that view share_groups shows the caller.
-- right: consume, observe
create function msgtx.share_group_names() returns table (group_name text) language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select v.name from msgtx.share_groups v order by v.name
$$;
