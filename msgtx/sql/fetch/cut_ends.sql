-- cut_ends(cut, name) → the partitions of a consistent cut as text (of `cut`, or Python's `str(Snapshot)`), with their ends.
-- `name`: of the caller's argument, for its error. Raises InvalidRequest if the text is no cut, IncarnationChanged if it is
-- one of another incarnation, UnknownTopicOrPartition for a partition without an id in the text that does not exist.
-- Reads installation, topic, partition.
create function msgtx.cut_ends(cut text, name text)
returns table (topic text, partition int, partition_id int, end_offset bigint) language plpgsql stable as $$
declare
    found_incarnation constant text := (select i.incarnation from msgtx.installation i);
    absent record;
begin
    if cut ~ ('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
              '( [a-zA-Z0-9._-]{1,249}:\d{1,9}=\d{1,18}(@\d{1,9})?(,\d{1,9}=\d{1,18}(@\d{1,9})?)*)*$') is not true then
        raise exception using errcode = 'MX042', message = format('%s is no cut: use what msgtx.cut returned', name),
            detail = jsonb_build_object('name', name);
    end if;
    if split_part(cut, ' ', 1) <> found_incarnation then
        raise exception using errcode = 'MX000', column = 'IncarnationChanged', message = format(
            '%s is a cut of incarnation %s, the database has %s since a failover: take another one',
            name, split_part(cut, ' ', 1), found_incarnation);
    end if;
    for cut_ends.topic, cut_ends.partition, cut_ends.partition_id, end_offset in
        select t.place[1], e.place[1]::int,
               coalesce(e.place[3]::int, msgtx.partition_id_of(t.place[1], e.place[1]::int)), e.place[2]::bigint
        from regexp_matches(cut, ' ([^ :]+):([^ ]+)', 'g') with ordinality t(place, at)
        cross join lateral regexp_matches(t.place[2], '(\d+)=(\d+)@?(\d+)?', 'g') with ordinality e(place, at)
        order by t.at, e.at
    loop
        if partition_id is null then
            raise exception using errcode = 'MX003', message = format('topic %s has no partition %s', topic, partition),
                detail = jsonb_build_object('topic', topic, 'partition', partition);
        end if;
        return next;
    end loop;
end $$;
