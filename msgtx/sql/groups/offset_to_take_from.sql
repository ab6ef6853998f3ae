-- offset_to_take_from(topic, partition, partition_id, group, offset, auto_offset_reset) → where a group reads on that has
-- committed this offset; null: from the log start. Of an offset that the log does not hold (any more), auto_offset_reset
-- decides, as for a consumer; with none it raises OffsetOutOfRange. Reads what fetch_batches does.
create function msgtx.offset_to_take_from(
    topic text, partition int, in_partition_id int, group_name text, committed_offset bigint, auto_offset_reset text
) returns bigint language plpgsql stable as $$
declare
    ends record;
begin
    select e.log_start_offset, e.last_stable_offset, e.log_end_offset into ends
    from msgtx.log_ends(array[in_partition_id], 'read_committed') e;
    if committed_offset between ends.log_start_offset and ends.log_end_offset then
        return committed_offset;
    end if;
    if committed_offset is not null and auto_offset_reset = 'none' then
        raise exception using errcode = 'MX001', message = format(
            '%s-%s: offset %s of group %s is not in the log, which goes from %s to %s: move it with '
            '`msgtx groups reset-offsets`',
            topic, partition, committed_offset, group_name, ends.log_start_offset, ends.log_end_offset),
            detail = jsonb_build_object(
                'topic', topic, 'partition', partition, 'offset', committed_offset, 'group', group_name);
    end if;
    return case when committed_offset is null or auto_offset_reset = 'earliest' then ends.log_start_offset
        else ends.last_stable_offset end;
end $$;
