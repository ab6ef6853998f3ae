-- append_staged(staged_by) appends the records that a SQL transaction has staged, each partition's in their order, and
-- deletes the rows. It raises if one cannot be stored. A batch has up to 400 KiB or 10,000 records (a record weighs 41 bytes
-- more than it has); a call has one batch of each partition at most, and up to 32 MiB. Every partition has its first batch
-- in the first round, whose calls go up the partitions: so all locks are taken in ascending order.
-- PREPARE TRANSACTION, which would keep the locks, is refused by PostgreSQL: for the notification that wakes consumers.
-- Locks partitions (exclusive, ascending). Writes record_batch, staged_record.
create function msgtx.append_staged(in_staged_by xid8) returns boolean language plpgsql volatile
set plan_cache_mode = force_generic_plan set jit = off set enable_seqscan = off as $$
declare
    calls cursor for
        with weighed as (
            select s.partition_id, s.staged_number, s.key, s.value, s.headers, s."timestamp", s.record_bytes,
                   ((sum(s.record_bytes + 41) over (partition by s.partition_id order by s.staged_number
                     rows unbounded preceding))::bigint - s.record_bytes - 41) / 409600 as round
            from msgtx.staged_record s where s.staged_by = in_staged_by
        ), grouped as (
            select w.partition_id, w.round, sum(w.record_bytes)::bigint as bytes, max(w."timestamp") as max_timestamp,
                   case when count(w.key) > 0 then array_agg(w.key order by w.staged_number) end as keys,
                   array_agg(w.value order by w.staged_number) as "values",
                   case when min(w."timestamp") < max(w."timestamp")
                       then array_agg(w."timestamp" order by w.staged_number) end as timestamps,
                   case when count(w.headers) > 0 then array_agg(w.headers order by w.staged_number) end as headers
            from weighed w group by w.partition_id, w.round
        ), batches as (
            select g.round, (sum(g.bytes) over (partition by g.round order by g.partition_id))::bigint / 33554432 as part,
                   row(g.partition_id, null, null, null, null, g.max_timestamp, g.keys, g."values", g.timestamps,
                       h.counts, h.keys, h."values")::msgtx.batch as batch
            from grouped g
            cross join lateral msgtx.header_columns(g.headers) h
        )
        select array_agg(b.batch order by (b.batch).partition_id) as batches
        from batches b group by b.round, b.part order by b.round, b.part;
    refused record;
    ignored boolean := msgtx.limit_idle_session();
begin
    for found_call in calls loop
        continue when msgtx.append_plain(found_call.batches);
        select a.error, a.detail into refused
        from msgtx.append(found_call.batches) a where a.error is not null limit 1;
        if found then
            raise exception using message = refused.detail, errcode = case refused.error
                when 'UnknownTopicOrPartition' then 'MX003' when 'RecordTooLarge' then 'MX010' else 'MX087' end;
        end if;
    end loop;
    delete from msgtx.staged_record s where s.staged_by = in_staged_by;
    return true;
end $$;
