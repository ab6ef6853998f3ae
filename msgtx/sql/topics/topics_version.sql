-- topics_version() → a number that every change of the topics raises: a later look at them sees at least this version.
-- right: consume
create function msgtx.topics_version() returns bigint language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select i.topics_version from msgtx.installation i;
end;
