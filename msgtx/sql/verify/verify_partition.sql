-- verify_partition(partition) → its ends and floor, as rows say them, for verify; broken: the names of rules that they
-- break.
--   floor_above_end  the floor is above the log end        log_start_beyond_end  log start is above the log end
-- Reads partition, record_batch, partition_floor.
-- right: admin of all topics
-- null: first_offset, stable_floor, log_start_offset, log_end_offset
create function msgtx.verify_partition(
    in_partition_id int, out log_start_offset bigint, out first_offset bigint, out log_end_offset bigint,
    out stable_floor bigint, out broken text[]
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    next_offset bigint;
begin
    select p.log_start_offset,
           (select r.base_offset from msgtx.record_batch r
            where r.partition_id = p.partition_id order by r.base_offset limit 1),
           (select r.last_offset + 1 from msgtx.last_row_of(p.partition_id) r),
           (select f.stable_floor from msgtx.floor_of(p.partition_id) f)
    into log_start_offset, first_offset, next_offset, stable_floor
    from msgtx.partition p where p.partition_id = in_partition_id;
    log_end_offset := greatest(log_start_offset, next_offset);
    broken := array_remove(array[
        case when stable_floor > log_end_offset then 'floor_above_end' end,
        case when log_start_offset > next_offset then 'log_start_beyond_end' end], null);
end $$;
