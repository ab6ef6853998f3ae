-- remove_log(partition, most_rows, most_bytes) removes the rows of a deleted partition, at most `most_rows` and of its
-- batches some `most_bytes`; → how many rows, the bytes of batches, and whether more are left. The last call removes the
-- partition from deleted_partition. The sweep of offsets removes committed offsets. The caller holds the partition's lock.
-- Reads transaction_decision. Deletes from record_batch, producer_state, transaction_marker, transaction_partition,
-- partition_floor, deleted_partition.
-- plan: look-ups, nested loops
create function msgtx.remove_log(
    in_partition_id int, most_rows int, most_bytes bigint default 33554432, out removed int, out bytes bigint,
    out is_more boolean)
language plpgsql volatile as $$
declare
    removed_now int;
begin
    with gone as (
        delete from msgtx.record_batch r
        where r.ctid = any(array(
            select f.ctid from (
                select b.ctid, sum(b.byte_size) over (order by b.base_offset) - b.byte_size as before
                from (
                    select w.ctid, w.base_offset, w.byte_size from msgtx.record_batch w
                    where w.partition_id = in_partition_id order by w.base_offset limit most_rows) b) f
            where f.before < most_bytes))
        returning r.producer_id, r.producer_epoch, r.transaction_number, r.byte_size),
    -- Markers of transactions in the history show how far markers are written; they go with it. The others stayed for
    -- these rows.
    unmarked as (
        delete from msgtx.transaction_marker m where m.ctid = any(array(
            select x.ctid
            from (select distinct g.producer_id, g.producer_epoch, g.transaction_number from gone g
                  where g.transaction_number is not null) g
            cross join lateral (
                select x.ctid from msgtx.transaction_marker x
                where x.partition_id = in_partition_id and x.producer_id = g.producer_id
                  and x.producer_epoch = g.producer_epoch and x.transaction_number = g.transaction_number limit 1) x
            where not exists (select from msgtx.decision_of(g.producer_id, g.producer_epoch, g.transaction_number)))))
    select count(*), coalesce(sum(g.byte_size), 0) into removed, bytes from gone g;
    is_more := removed > 0 and exists (select from msgtx.record_batch r where r.partition_id = in_partition_id);
    if is_more then
        return;
    end if;

    delete from msgtx.producer_state s
    where s.ctid = any(array(
        select k.ctid from msgtx.producer_state k where k.partition_id = in_partition_id limit most_rows - removed));
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    -- They show where open transactions are to be found.
    delete from msgtx.transaction_partition tp
    where tp.ctid = any(array(
        select o.ctid from msgtx.transaction_partition o
        where o.partition_id = in_partition_id
          and exists (select from msgtx.decision_of(o.producer_id, o.producer_epoch, o.transaction_number))
        limit most_rows - removed));
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    delete from msgtx.partition_floor f
    where f.ctid = any(array(
        select l.ctid from msgtx.partition_floor l where l.partition_id = in_partition_id limit most_rows - removed));
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    is_more := removed >= most_rows;
    if not is_more then
        perform msgtx.forget_swept('floor', in_partition_id, 0);
        delete from msgtx.deleted_partition d where d.partition_id = in_partition_id;
        removed := removed + 1;
    end if;
end $$;
