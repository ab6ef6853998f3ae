-- saved_snapshots(name) → the snapshot that is kept under a name, null: all, in order of the names, and the role that saved
-- each. An unknown one is absent. Of topics that the caller may neither consume nor observe a snapshot has nothing, unless
-- the caller saved it, and one of only such topics is absent: a part of a consistent cut is one, too. Reads named_snapshot.
-- right: consume, observe
create function msgtx.saved_snapshots(in_name text default null)
returns table (name text, snapshot text, taken_at timestamptz, role_name text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    patterns text[] := case when msgtx.acts_for_owner() then null else msgtx.patterns_of_caller('{consume,observe}') end;
begin
    return query
    select s.name, coalesce(seen.snapshot, s.snapshot), s.taken_at, s.role_name::text
    from msgtx.named_snapshot s
    left join lateral (
        select string_agg(p.part, ' ' order by p.place) as snapshot, count(*) as parts
        from (select p.part, p.place from string_to_table(s.snapshot, ' ') with ordinality p(part, place)
              where p.place = 1 or split_part(p.part, ':', 1) like any(patterns) offset 0) p) seen
        on patterns is not null and not msgtx.acts_for_role(s.role_name)
    where (in_name is null or s.name = in_name) and (seen.parts is null or seen.parts > 1 or position(' ' in s.snapshot) = 0)
    order by s.name;
end $$;
