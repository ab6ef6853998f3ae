-- table_statistics() → size, rows and upkeep of msgtx's tables, as the statistics know them. With the caller's rights, not
-- the owner's.
-- right: observe of all topics
-- null: last_vacuum, last_autovacuum
create function msgtx.table_statistics()
returns table (
    name text, bytes bigint, live_rows bigint, dead_rows bigint, rows_since_vacuum bigint, last_vacuum timestamptz,
    last_autovacuum timestamptz, frozen_age int)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    return query
    select s.relname::text, pg_total_relation_size(s.relid), s.n_live_tup, s.n_dead_tup, s.n_ins_since_vacuum,
           s.last_vacuum, s.last_autovacuum, age(c.relfrozenxid)
    from pg_stat_all_tables s join pg_class c on c.oid = s.relid
    where s.schemaname = 'msgtx'
    order by s.relname;
end $$;
