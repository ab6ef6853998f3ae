-- saved_snapshots(name) → the snapshot that is kept under a name, null: all, in order of the names. An unknown one is
-- absent. Reads named_snapshot.
-- right: consume
create function msgtx.saved_snapshots(in_name text default null)
returns table (name text, snapshot text, taken_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select s.name, s.snapshot, s.taken_at from msgtx.named_snapshot s
    where in_name is null or s.name = in_name order by s.name;
end $$;
