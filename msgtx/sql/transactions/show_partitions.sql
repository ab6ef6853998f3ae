-- show_partitions(name, skip, most) → what a transaction wrote, a row for each partition that the caller may see, by the
-- partition's id. At most 20,000 rows of the log are counted in one call, the last ones of each partition; if there are
-- more, batches and bytes are estimated from them (is_estimate), and records too where the first row is gone.
--   topic       null: it was deleted        removed   what is not stored any more, and why: topic, retention, compaction
--   marked      marker: phase two has written its marker; floor: the partition's floor is above it
--   records, batches, bytes, times          of what is stored; null: nothing is
-- Reads transaction tables, topic, partition, partition_floor, record_batch.
-- right: consume, observe
-- null: topic, partition_index, last_offset, batches, records, bytes, first_appended_at, last_appended_at, marked
-- null: coordinator_epoch, removed
-- plan: look-ups, nested loops
create function msgtx.show_partitions(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, skip int, most int)
returns table (
    topic text, partition_index int, first_offset bigint, last_offset bigint, batches bigint, records bigint, bytes bigint,
    is_estimate boolean, first_appended_at timestamptz, last_appended_at timestamptz, marked text, coordinator_epoch int,
    removed text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    ids int[];
    firsts bigint[];
    lasts bigint[];
    rows_each int;
begin
    select array_agg(x.partition_id order by x.partition_id), array_agg(x.first_offset order by x.partition_id),
           array_agg(x.last_offset order by x.partition_id)
    into ids, firsts, lasts
    from (
        select s.* from msgtx.spans_to_show(in_producer_id, in_producer_epoch, in_transaction_number, visible) s
        order by s.partition_id offset skip limit most) x;
    rows_each := greatest(20000 / greatest(cardinality(ids), 1), 1);
    return query
    select t.name, p.partition_index, x.first_offset, coalesce(x.last_offset, newest.last_offset),
           case when counted.rows > rows_each then round(counted.rows * share.of_all)::bigint else counted.rows end,
           case when counted.rows <= rows_each then counted.records
               when oldest.base_sequence is not null then newest.last_sequence - oldest.base_sequence + 1
               else round(counted.records * share.of_all)::bigint end,
           case when counted.rows > rows_each then round(counted.bytes * share.of_all)::bigint else counted.bytes end,
           coalesce(counted.rows > rows_each, false), coalesce(oldest.appended_at, counted.first_appended_at),
           newest.appended_at,
           case when m.outcome is not null then 'marker' when floor.stable_floor > x.last_offset then 'floor' end,
           m.coordinator_epoch,
           case when p.partition_id is null then 'topic'
               when x.first_offset < p.log_start_offset then 'retention'
               when oldest.base_sequence is null or newest.base_sequence is null or counted.compacted then 'compaction' end
    from unnest(ids, firsts, lasts) x(partition_id, first_offset, last_offset)
    left join lateral (select p.* from msgtx.partition p where p.partition_id = x.partition_id limit 1) p on true
    left join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t on true
    left join lateral (
        select b.base_sequence, b.appended_at
        from (select b.* from msgtx.record_batch b
              where b.partition_id = p.partition_id and b.base_offset >= x.first_offset order by b.base_offset limit 1) b
        where b.producer_id = in_producer_id and b.producer_epoch = in_producer_epoch
          and b.transaction_number = in_transaction_number) oldest on true
    -- Of a decided transaction the row at its last offset, or one a little in front if compaction has removed that; of an
    -- undecided one the newest row of its producer.
    left join lateral (
        (select b.base_sequence, b.last_sequence, b.last_offset, b.appended_at
         from (select b.* from msgtx.record_batch b
               where b.partition_id = p.partition_id and b.base_offset between x.first_offset and x.last_offset
               order by b.base_offset desc limit 100) b
         where b.producer_id = in_producer_id and b.producer_epoch = in_producer_epoch
           and b.transaction_number = in_transaction_number
         order by b.base_offset desc limit 1)
        union all
        (select b.base_sequence, b.last_sequence, b.last_offset, b.appended_at
         from (select b.* from msgtx.record_batch b
               where b.partition_id = p.partition_id and b.producer_id = in_producer_id
                 and b.producer_epoch = in_producer_epoch and x.last_offset is null
               order by b.base_sequence desc limit 1) b
         where b.transaction_number = in_transaction_number)
        limit 1) newest on true
    -- Its rows are neighbours in the order of sequences. The limit stands inside: behind it, earlier transactions begin.
    left join lateral (
        select count(*) as rows, sum(b.record_count)::bigint as records, sum(b.byte_size)::bigint as bytes,
               min(b.appended_at) as first_appended_at, min(b.base_offset) as first_counted,
               coalesce(bool_or(b.record_count <= b.last_offset - b.base_offset), false) as compacted
        from (select b.* from msgtx.record_batch b
              where b.partition_id = p.partition_id and b.producer_id = in_producer_id
                and b.producer_epoch = in_producer_epoch and b.base_sequence <= newest.base_sequence
              order by b.base_sequence desc limit rows_each + 1) b
        where b.transaction_number = in_transaction_number) counted on newest.base_sequence is not null
    cross join lateral (
        select (newest.last_offset - greatest(x.first_offset, p.log_start_offset) + 1)::float8
               / (newest.last_offset - counted.first_counted + 1) as of_all) share
    left join lateral msgtx.marker_of(x.partition_id, in_producer_id, in_producer_epoch, in_transaction_number) m on true
    left join lateral msgtx.floor_of(x.partition_id) floor on true
    order by x.partition_id;
end $$;
