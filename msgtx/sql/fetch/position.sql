-- position(group_name, cut) → where a group stands, as a cut of the same partitions: its committed offset, or the log start
-- where it has none. For ranges and commit_batch. Raises UnstableOffset while a newer offset is sealed and undecided.
-- Reads through cut_ends and committed_offsets; partition.
-- right: consume
-- plan: look-ups
create function msgtx.position(group_name text, cut text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    ids constant int[] := array(select e.partition_id from msgtx.cut_ends("position".cut, 'cut') e);
    ends text := '';
    place record;
    ignored boolean := msgtx.acts_for_owner()
        or msgtx.require_rights('{consume}', ids) and msgtx.require_names('group', array[group_name]);
begin
    for place in
        select e.topic, e.partition, e.partition_id, c.pending,
               coalesce(c.committed_offset, (
                   select p.log_start_offset from msgtx.partition p where p.partition_id = e.partition_id), 0) as at
        from msgtx.cut_ends("position".cut, 'cut') e
        left join msgtx.committed_offsets(group_name, ids) c on c.partition_id = e.partition_id
        order by e.topic, e.partition
    loop
        if place.pending then
            raise exception using errcode = 'MX000', column = 'UnstableOffset', message = format(
                'the offset of group %s on %s-%s is part of an undecided transaction: wait, or end it',
                group_name, place.topic, place.partition);
        end if;
        ends := ends || format(' %s:%s=%s@%s', place.topic, place.partition, place.at, place.partition_id);
    end loop;
    return split_part("position".cut, ' ', 1) || ends;
end $$;
