-- describe_place() → where this database was when its incarnation was made (note_place), and where it is. Nulls: it is not
-- known. Reads installation.
-- right: observe of all topics
-- null: noted_system, noted_database, noted_timeline, found_system, found_database, found_timeline
create function msgtx.describe_place(
    out noted_system bigint, out noted_database bigint, out noted_timeline int,
    out found_system bigint, out found_database bigint, out found_timeline int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    select i.system_identifier, i.database_oid, i.timeline, s.system_identifier, d.oid::bigint, msgtx.timeline_of_server()
    into noted_system, noted_database, noted_timeline, found_system, found_database, found_timeline
    from msgtx.installation i cross join pg_control_system() s
    join pg_database d on d.datname = current_database();
exception when insufficient_privilege or feature_not_supported then
    null;
end $$;
