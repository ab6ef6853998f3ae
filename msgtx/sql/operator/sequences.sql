-- sequences() → each sequence of the schema, its next number, the largest number that the tables hold (null: none), and
-- whether it would give out a number that is stored (is_behind). A logical replica has the rows, and no sequences.
-- The catalog says where a sequence's numbers are: those of an identity in all columns with its column's name, those of
-- `producer_id_sequence` in all columns `producer_id`, those of `commit_sequence` in all of that name. No query reads a
-- whole log: it uses the index that begins with the column, or looks into one partition after the other. Tables without
-- such an index, such as group_offset, are read as a whole. A producer id has
-- its role's tag above 40 bits (next_producer_id). Members of share groups draw their numbers, from 2^60 on, so those are of
-- no sequence (join_share_group). A standby cannot read unlogged tables. Reads all tables.
-- right: observe of all topics
-- null: stored
-- plan: look-ups, nested loops
create function msgtx.sequences()
returns table (sequence_name text, next_number bigint, stored bigint, is_behind boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    s record;
    home record;
    found bigint;
    bits int;
    below bigint;
    -- The largest number of each tag.
    newest constant text :=
        'newest(number) as ('
        '(select r.%1$I::bigint from msgtx.%2$I r where %5$s and r.%1$I is not null order by r.%1$I desc limit 1)'
        ' union all select (select r.%1$I::bigint from msgtx.%2$I r where %5$s and r.%1$I < (n.number >> %3$s) << %3$s'
        ' order by r.%1$I desc limit 1) from newest n where n.number is not null) ';
begin
    for s in
        select c.relname, q.seqincrement, coalesce(a.attname, regexp_replace(c.relname, '_sequence$', '')) as of_column
        from pg_class c
        join pg_sequence q on q.seqrelid = c.oid
        left join pg_depend d
            on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i' and d.refobjsubid > 0
        left join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        where c.relnamespace = 'msgtx'::regnamespace and (c.relpersistence = 'p' or not pg_is_in_recovery())
        order by c.relname
    loop
        sequence_name := s.relname;
        execute format(
            'select last_value + case when is_called then %s else 0 end from msgtx.%I', s.seqincrement, s.relname)
        into next_number;
        stored := null;
        -- Above them is the tag of a role, or what makes a drawn number.
        bits := case s.of_column when 'producer_id' then 40 when 'member_number' then 60 else 62 end;
        below := case s.of_column when 'member_number' then 1::bigint << bits else 9223372036854775807 end;
        for home in
            select t.relname, a.attname,
                   exists (select from pg_index i where i.indrelid = t.oid and i.indkey[0] = a.attnum) as leads,
                   exists (
                       select from pg_index i
                       join pg_attribute f on f.attrelid = t.oid and f.attnum = i.indkey[0] and f.attname = 'partition_id'
                       where i.indrelid = t.oid and i.indkey[1] = a.attnum) as follows
            from pg_class t
            join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and a.atttypid in ('int'::regtype, 'bigint'::regtype)
            where t.relnamespace = 'msgtx'::regnamespace and t.relkind = 'r' and a.attname in (s.relname, s.of_column)
              and (t.relpersistence = 'p' or not pg_is_in_recovery())
        loop
            execute format(case
                when home.leads then
                    'with recursive ' || newest || 'select max(n.number & %4$s) from newest n where n.number < %6$s'
                when home.follows then
                    'select max(of_one.number) from (select partition_id from msgtx.partition'
                    ' union select partition_id from msgtx.deleted_partition) p cross join lateral ('
                    'with recursive ' || newest ||
                    'select max(n.number & %4$s) as number from newest n where n.number < %6$s) of_one'
                else 'select max(r.%1$I & %4$s) from msgtx.%2$I r where r.%1$I < %6$s' end,
                home.attname, home.relname, bits, (1::bigint << bits) - 1,
                case when home.follows and not home.leads then 'r.partition_id = p.partition_id' else 'true' end, below)
            into found;
            stored := greatest(stored, found);
        end loop;
        is_behind := coalesce(next_number <= stored, false);
        return next;
    end loop;
end $$;
