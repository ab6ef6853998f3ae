-- remove_log(partition, most_rows) removes the rows of a deleted partition, at most `most_rows` and of its batches some 32 MiB; → how
-- many, and whether more are left. The last call removes the partition from deleted_partition.
-- What committed offsets there are goes with the sweep of offsets. The caller holds the partition's lock.
-- Reads transaction_decision. Deletes from record_batch, producer_state, transaction_marker, transaction_partition,
-- partition_floor, deleted_partition.
create function msgtx.remove_log(in_partition_id int, most_rows int, out removed int, out is_more boolean)
language plpgsql volatile set plan_cache_mode = force_generic_plan set jit = off set enable_hashjoin = off
set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    bytes_at_once constant bigint := 33554432;
    removed_now int;
begin
    with gone as (
        delete from msgtx.record_batch r
        where r.partition_id = in_partition_id and r.base_offset in (
            select f.base_offset from (
                select b.base_offset, sum(b.byte_size) over (order by b.base_offset) - b.byte_size as before
                from (
                    select w.base_offset, w.byte_size from msgtx.record_batch w
                    where w.partition_id = in_partition_id order by w.base_offset limit most_rows) b) f
            where f.before < bytes_at_once)
        returning r.producer_id, r.producer_epoch, r.transaction_number),
    -- Markers of what is in the history show how far markers are written; they go with it. The others stayed for these rows.
    unmarked as (
        delete from msgtx.transaction_marker m using (
            select distinct g.producer_id, g.producer_epoch, g.transaction_number from gone g
            where g.transaction_number is not null) g
        where m.partition_id = in_partition_id and m.producer_id = g.producer_id and m.producer_epoch = g.producer_epoch
          and m.transaction_number = g.transaction_number
          and (select true from msgtx.transaction_decision d where d.producer_id = m.producer_id
               and d.producer_epoch = m.producer_epoch and d.transaction_number = m.transaction_number) is null)
    select count(*) into removed from gone;
    is_more := removed > 0 and exists (select from msgtx.record_batch r where r.partition_id = in_partition_id);
    if is_more then
        return;
    end if;

    delete from msgtx.producer_state s
    where s.partition_id = in_partition_id and s.producer_id in (
        select k.producer_id from msgtx.producer_state k where k.partition_id = in_partition_id limit most_rows - removed);
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    -- They show where what is still open is to be found.
    delete from msgtx.transaction_partition tp
    where (tp.producer_id, tp.producer_epoch, tp.transaction_number, tp.partition_id) in (
        select o.producer_id, o.producer_epoch, o.transaction_number, o.partition_id from msgtx.transaction_partition o
        where o.partition_id = in_partition_id
          and (select true from msgtx.transaction_decision d where d.producer_id = o.producer_id
               and d.producer_epoch = o.producer_epoch and d.transaction_number = o.transaction_number)
        limit most_rows - removed);
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    delete from msgtx.partition_floor f
    where f.partition_id = in_partition_id and f.stable_floor in (
        select l.stable_floor from msgtx.partition_floor l where l.partition_id = in_partition_id limit most_rows - removed);
    get diagnostics removed_now = row_count;
    removed := removed + removed_now;
    is_more := removed >= most_rows;
    if not is_more then
        delete from msgtx.deleted_partition d where d.partition_id = in_partition_id;
        removed := removed + 1;
    end if;
end $$;
