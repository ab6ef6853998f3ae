-- delete_records(partitions, befores) moves the log starts of partitions up to these offsets (−1: the log end); → per
-- partition, in their order, its log start. Below the log start already: nothing changes. Beyond the log end, or an unknown
-- partition: it raises, and nothing changes at all. Rows go later, by remove_old_batches, once they are decided.
-- Locks the partitions' rows (ascending), which no producer and no reader waits for. Reads record_batch. Writes partition.
-- Flushed: a log start does not move back (I2).
-- right: admin
-- plan: look-ups
create function msgtx.delete_records(partition_ids int[], befores bigint[])
returns table (partition_id int, log_start_offset bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    asked record;
    place record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    ignored := msgtx.flush_at_commit();
    for asked in select a.* from unnest(partition_ids, befores) a(partition_id, before) order by a.partition_id loop
        select p.log_start_offset, t.name || '-' || p.partition_index as name,
               greatest(p.log_start_offset, (
                   select r.last_offset + 1 from msgtx.last_row_of(p.partition_id) r)) as log_end_offset
        into place
        from msgtx.partition p
        cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
        where p.partition_id = asked.partition_id for no key update of p;
        if not found then
            raise exception using errcode = 'MX003',
                message = format('partition %s does not exist (any more)', coalesce(asked.partition_id::text, 'NULL')),
                detail = jsonb_build_object('partition_id', asked.partition_id);
        end if;
        if not msgtx.acts_for_owner() then  -- before the answer shows anything of the topic
            ignored := msgtx.require_rights('{admin}', array[asked.partition_id]);
        end if;
        if asked.before < -1 or asked.before > place.log_end_offset or asked.before is null then
            raise exception using errcode = 'MX001', message = format(
                '%s: offset %s is not in the log, which goes from %s to %s',
                place.name, coalesce(asked.before::text, 'NULL'), place.log_start_offset, place.log_end_offset),
                detail = jsonb_build_object('partition_id', asked.partition_id, 'offset', asked.before, 'limit',
                    place.log_end_offset);
        end if;
        update msgtx.partition p
        set log_start_offset = case asked.before when -1 then place.log_end_offset else asked.before end
        where p.partition_id = asked.partition_id and p.log_start_offset
            < case asked.before when -1 then place.log_end_offset else asked.before end;
    end loop;
    return query
    select a.partition_id, p.log_start_offset
    from unnest(partition_ids) with ordinality a(partition_id, ordinal)
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = a.partition_id limit 1) p
        order by a.ordinal;
end $$;
