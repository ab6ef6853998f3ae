-- remove_front(partition, most_rows, most_bytes) removes whole rows from the front of a log: those that are below the log
-- start, old, or more than retention_bytes; → how many, of how many bytes, and whether there may be more. Never an
-- undecided one, with any policy. Log start, counters and rows move in one SQL transaction, and the producers' last
-- sequences are kept (internals: cleaning). The age of a row dated ahead (is_dated_ahead) counts from the first sweep that
-- saw it: partition.seen_at is when a sweep saw the first such row at the front, seen_offset the end of the log then. The
-- next ones count from when these are gone. A row goes by size if the rest is still retention_bytes. ABORT markers whose
-- history is gone go with the last batch of their transaction; the others go with their history. Locks the partition's row,
-- or does nothing if another cleaner has it. Producers are not held up: an append beside it sees rows and log start as they
-- were, or both as they are. Reads topic, transaction_decision. Deletes from record_batch, transaction_marker; writes
-- partition, and producer_state through keep_producers. Flushed: a log start does not move back (I2).
-- plan: look-ups, nested loops
create function msgtx.remove_front(
    in_partition_id int, most_rows int, most_bytes bigint, out removed int, out bytes bigint, out is_more boolean
) language plpgsql volatile as $$
declare
    now_at timestamptz := msgtx.clock();
    place record;
    bound bigint;
    total bigint;
    first record;
    seen_upto bigint;
    upto bigint;
    ignored boolean;
begin
    removed := 0;
    bytes := 0;
    is_more := false;
    select p.log_start_offset, p.seen_offset, p.seen_at, t.cleanup_policy <> 'compact' as deletes, t.retention_ms,
           t.retention_bytes into place
    from msgtx.partition p
    cross join lateral (select t.* from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where p.partition_id = in_partition_id for no key update of p skip locked;
    if not found then
        return;
    end if;
    bound := msgtx.decided_end(in_partition_id);
    select b.base_offset, msgtx.is_dated_ahead(b.max_timestamp, b.appended_at, place.retention_ms, now_at) as is_ahead
        into first
    from msgtx.record_batch b where b.partition_id = in_partition_id order by b.base_offset limit 1;
    if place.deletes and first.is_ahead then
        if place.seen_at <= now_at and first.base_offset < place.seen_offset then
            seen_upto := case when extract(epoch from now_at - place.seen_at) * 1000 > place.retention_ms
                         then place.seen_offset end;
        else
            update msgtx.partition p
            set seen_at = now_at, seen_offset = (select b.last_offset + 1 from msgtx.last_row_of(in_partition_id) b)
            where p.partition_id = in_partition_id;
        end if;
    end if;
    if place.deletes and place.retention_bytes >= 0 then
        total := msgtx.count_bytes(in_partition_id);
        is_more := total is null;
    end if;
    select count(*), coalesce(sum(w.byte_size), 0), max(w.last_offset), is_more or coalesce(bool_or(w.is_last), false)
    into removed, bytes, upto, is_more
    from (
        select r.*, bool_and(
                   r.last_offset < place.log_start_offset
                   or (place.deletes and (
                       msgtx.is_old(r.max_timestamp, r.appended_at, place.retention_ms, now_at)
                       or coalesce(r.last_offset < seen_upto, false)
                          and msgtx.is_dated_ahead(r.max_timestamp, r.appended_at, place.retention_ms, now_at)
                       or coalesce(total - r.bytes_upto >= place.retention_bytes,
                           false)))) over (order by r.base_offset) as goes,
               r.ordinal = most_rows or r.bytes_upto >= most_bytes as is_last
        from (
            select b.base_offset, b.last_offset, b.byte_size, b.max_timestamp, b.appended_at,
                   sum(b.byte_size) over (order by b.base_offset) as bytes_upto,
                   row_number() over (order by b.base_offset) as ordinal
            from msgtx.record_batch b
            where b.partition_id = in_partition_id and b.base_offset < bound
            order by b.base_offset limit most_rows) r) w
    where w.goes and w.bytes_upto - w.byte_size < most_bytes;
    if upto is null then
        return;
    end if;

    ignored := msgtx.flush_at_commit();
    ignored := msgtx.keep_producers(in_partition_id, upto);
    delete from msgtx.transaction_marker m where m.ctid = any(array(
        select x.ctid
        from (select distinct r.producer_id, r.producer_epoch, r.transaction_number from msgtx.record_batch r
              where r.partition_id = in_partition_id and r.base_offset <= upto and r.transaction_number is not null) gone
        cross join lateral (
            select x.ctid, x.last_offset from msgtx.transaction_marker x
            where x.partition_id = in_partition_id and x.producer_id = gone.producer_id
              and x.producer_epoch = gone.producer_epoch and x.transaction_number = gone.transaction_number limit 1) x
        where x.last_offset <= upto
          and not exists (select from msgtx.decision_of(gone.producer_id, gone.producer_epoch, gone.transaction_number))));
    with gone as (
        delete from msgtx.record_batch r where r.partition_id = in_partition_id and r.base_offset <= upto
        returning r.base_offset, r.byte_size)
    update msgtx.partition p
    set log_start_offset = greatest(p.log_start_offset, upto + 1),
        counted_bytes = p.counted_bytes - (
            select coalesce(sum(g.byte_size), 0) from gone g where g.base_offset < p.counted_offset),
        compacted_bytes = p.compacted_bytes - (
            select coalesce(sum(g.byte_size), 0) from gone g where g.base_offset < p.compacted_offset)
    where p.partition_id = in_partition_id;
end $$;
