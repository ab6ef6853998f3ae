-- check_range(partition, start, end, incarnation, strict) → the base offset of the row that holds start, else start: where a
-- reader of committed_batches begins. It refuses a range that was planned as committed and is not to be had as it was:
--   IncarnationChanged        the database is of another incarnation
--   UnknownTopicOrPartition   the partition was deleted
--   OffsetOutOfRange          its front was removed
--   LogTruncated              it is not committed up to its end: a replica is behind, or a crash took records back
-- Not strict: removed records and deleted partitions are left out. Stands in the statement that reads, and so is of the
-- same snapshot.
-- Reads installation, partition and, through base_offset_of and decided_end, record_batch and the transaction tables.
-- right: consume
-- plan: look-ups
create function msgtx.check_range(
    in_partition_id int, start_offset bigint, end_offset bigint, planned_incarnation uuid, strict boolean
) returns bigint language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    log_start bigint;
    committed bigint;
    found_incarnation uuid := (select i.incarnation from msgtx.installation i);
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume}', array[in_partition_id]);
    if found_incarnation is distinct from planned_incarnation then
        raise exception using errcode = 'MX000', column = 'IncarnationChanged', message = format(
            'this range was planned in incarnation %s, the database has %s since a failover: plan it anew',
            planned_incarnation, found_incarnation);
    end if;
    select p.log_start_offset into log_start from msgtx.partition p where p.partition_id = in_partition_id;
    if not found then
        if strict then
            raise exception using errcode = 'MX003', message = format(
                'partition %s was deleted since offsets %s to %s of it were planned; failOnDataLoss=false reads without it',
                in_partition_id, start_offset, end_offset),
                detail = jsonb_build_object('partition_id', in_partition_id);
        end if;
        return start_offset;
    end if;
    if strict and start_offset < log_start then
        raise exception using errcode = 'MX001', message = format(
            'offsets %s to %s of %s were planned, and retention has removed what is before %s;'
            ' failOnDataLoss=false goes on with what is there', start_offset, end_offset,
            msgtx.partition_name(in_partition_id), log_start),
            detail = jsonb_build_object('partition_id', in_partition_id, 'offset', start_offset, 'limit', log_start);
    end if;
    committed := greatest(msgtx.decided_end(in_partition_id), log_start);
    if committed < end_offset then
        raise exception using errcode = 'MX000', column = 'LogTruncated', message = format(
            'offsets %s to %s of %s were planned, and they are committed up to %s here: a replica that is behind'
            ' (read_url), or a crash took records back', start_offset, end_offset, msgtx.partition_name(in_partition_id),
            committed),
            detail = jsonb_build_object('partition_id', in_partition_id, 'offset', end_offset, 'limit', committed);
    end if;
    return msgtx.base_offset_of(in_partition_id, start_offset);
end $$;
