-- verify_batches(partition, after, max_rows, max_bytes, until) looks at the next rows of a log, behind the row at `after`
-- and in front of offset `until` (null: to the end), all on one snapshot, so it may run beside writers, and beside itself on
-- other rows. → where it came to (null: the end), how many rows and records, and as JSON each row that breaks a rule, with
-- the rules' names and the facts. Memory: one row's arrays at a time.
--   offsets_dense, log_start, last_offset, offset_deltas, append_time            the row against the one in front of it
--   array_lengths, byte_size, timestamps, producer_columns, sequence_span        the row in itself
--   sequence, stored_twice, sequence_order, epoch_order, epoch_ahead             against its producer's other rows here
--   before_decision, after_decision, open_partition                              against its transaction
-- A row's sequence may begin anywhere if retention has removed the rows before it. byte_size counts the arrays' headers, of
-- varying length: three bytes of each are allowed for. Purged transactions are below the floor. Reads partition,
-- partition_floor, record_batch, producer_state, producer, transaction tables.
-- right: admin of all topics
-- plan: look-ups, nested loops, in order
create function msgtx.verify_batches(
    in_partition_id int, after_offset bigint, max_rows int, max_bytes bigint, until_offset bigint default null,
    out next_after bigint, out batches bigint, out records bigint, out broken jsonb
) language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    with place as materialized (
        select p.log_start_offset,
               (select r.base_offset from msgtx.record_batch r
                where r.partition_id = in_partition_id order by r.base_offset limit 1) as first_offset,
               (select f.stable_floor from msgtx.floor_of(in_partition_id) f) as stable_floor
        from msgtx.partition p where p.partition_id = in_partition_id),
    chunk as materialized (
        select w.* from (
            select r.*, coalesce(sum(greatest(r.byte_size, 0)) over (
                       order by r.base_offset rows between unbounded preceding and 1 preceding), 0) as bytes_before
            from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset > after_offset
              and r.base_offset < coalesce(until_offset, 9223372036854775807)
            order by r.base_offset limit max_rows) w
        where w.bytes_before < max_bytes),
    looked as (
        select b.base_offset, b.last_offset, b.record_count, b.appended_at, b.byte_size, b.max_timestamp,
               b.base_sequence, b.last_sequence, b.producer_id, b.producer_epoch, b.transaction_number,
               previous.last_offset + 1 as expected_offset, previous.appended_at as previous_appended_at,
               p.log_start_offset, n.lengths, n.bytes, n.newest_timestamp,
               before.producer_epoch as before_epoch, before.base_offset as before_offset,
               before.last_sequence as before_sequence, w.epoch as current_epoch,
               d.outcome, d.first_offset as decided_first, d.last_offset as decided_last, tp.first_offset as begun_at,
               array_remove(array[
                   case when b.base_offset <> previous.last_offset + 1 then 'offsets_dense' end,
                   case when previous.last_offset is null and b.base_offset > p.log_start_offset then 'log_start' end,
                   case when b.last_offset < b.base_offset
                          or (b.offset_deltas is null and b.last_offset <> b.base_offset + b.record_count - 1)
                        then 'last_offset' end,
                   case when not n.ascending then 'offset_deltas' end,
                   case when b.appended_at < previous.appended_at then 'append_time' end,
                   case when not n.equal_lengths then 'array_lengths' end,
                   case when b.byte_size not between n.bytes - 12 and n.bytes then 'byte_size' end,
                   case when n.newest_timestamp > b.max_timestamp then 'timestamps' end,
                   case when num_nulls(b.producer_id, b.producer_epoch, b.base_sequence, b.last_sequence) not in (0, 4)
                          or (b.producer_id is null and b.transaction_number is not null) then 'producer_columns' end,
                   case when b.base_sequence < 0 or b.last_sequence - b.base_sequence <> b.last_offset - b.base_offset
                        then 'sequence_span' end,
                   case when before.base_offset > b.base_offset and not before.same
                        then case when before.producer_epoch = b.producer_epoch then 'sequence_order' else 'epoch_order' end
                        end,
                   case when kept.producer_epoch > b.producer_epoch then 'epoch_order' end,
                   case when before.same and before.base_offset < b.base_offset then 'stored_twice' end,
                   case when before.same then null
                        when before.producer_epoch = b.producer_epoch then
                            case when b.base_sequence <> before.last_sequence + 1 then 'sequence' end
                        when before.producer_epoch < b.producer_epoch then
                            case when b.base_sequence <> 0 then 'sequence' end
                        when kept.producer_epoch = b.producer_epoch then
                            case when b.base_sequence <= kept.last_sequence then 'sequence' end
                        when b.base_sequence > 0 and p.first_offset = 0 then 'sequence' end,
                   case when b.producer_epoch > w.epoch then 'epoch_ahead' end,
                   case when b.base_offset < d.first_offset then 'before_decision' end,
                   case when d.outcome is not null and b.last_offset <= d.last_offset is not true then 'after_decision' end,
                   case when b.transaction_number is not null and d.outcome is null
                          and (b.base_offset < p.stable_floor is not true or t.opened_at is not null)
                          and (tp.first_offset is null or b.base_offset < tp.first_offset)
                          and (before.transaction_number = b.transaction_number
                               and before.producer_epoch = b.producer_epoch) is not true
                        then 'open_partition' end], null) as rules
        from chunk b
        cross join place p
        left join lateral (
            select r.last_offset, r.appended_at from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.base_offset < b.base_offset
            order by r.base_offset desc limit 1) previous on true
        -- Whole arrays are read once: joined to an empty one they come out of their storage, and stay out.
        cross join lateral (
            select b."values" || '{}'::bytea[] as "values",
                   case when b.keys is not null then b.keys || '{}'::bytea[] end as keys,
                   case when b.header_keys is not null then b.header_keys || '{}'::text[] end as header_keys,
                   case when b.header_values is not null then b.header_values || '{}'::bytea[] end as header_values
            offset 0) a
        cross join lateral (
            select array[cardinality(a."values"), cardinality(a.keys), cardinality(b.timestamps),
                         cardinality(b.header_counts), cardinality(b.offset_deltas)] as lengths) c
        cross join lateral (
            select c.lengths, b.record_count = all(array_remove(c.lengths, null))
                   and coalesce(cardinality(a.header_keys), 0) = (select coalesce(sum(c), 0) from unnest(b.header_counts) c)
                   and coalesce(cardinality(a.header_values), 0) = coalesce(cardinality(a.header_keys), 0) as equal_lengths,
                   msgtx.batch_bytes(a.keys, a."values", a.header_keys, a.header_values) as bytes,
                   (select max(u) from unnest(b.timestamps) u) as newest_timestamp,
                   b.offset_deltas is null or (
                       select coalesce(bool_and(u.delta >= 0 and u.delta <= b.last_offset - b.base_offset
                                                and u.delta > b.offset_deltas[u.ordinal - 1] is not false), true)
                       from unnest(b.offset_deltas) with ordinality u(delta, ordinal)) as ascending
            offset 0) n
        left join lateral (
            select r.base_offset, r.producer_epoch, r.last_sequence, r.transaction_number,
                   r.producer_epoch = b.producer_epoch and r.base_sequence = b.base_sequence as same
            from msgtx.record_batch r
            where r.partition_id = in_partition_id and r.producer_id = b.producer_id
              and (r.producer_epoch, r.base_sequence) <= (b.producer_epoch, b.base_sequence)
              and r.base_offset <> b.base_offset
            order by r.producer_epoch desc, r.base_sequence desc limit 1) before on true
        left join lateral (
            select k.producer_epoch, k.last_sequence from msgtx.producer_state k
            where k.partition_id = in_partition_id and k.producer_id = b.producer_id limit 1) kept
            on before.base_offset is null
        left join lateral (
            select w.epoch from msgtx.producer w where w.producer_id = b.producer_id limit 1) w on true
        left join lateral msgtx.decided_here(
            in_partition_id, b.producer_id, b.producer_epoch, b.transaction_number) d on true
        left join lateral msgtx.transaction_of(b.producer_id, b.producer_epoch, b.transaction_number) t on true
        left join lateral (
            select o.first_offset from msgtx.transaction_partition o
            where o.producer_id = b.producer_id and o.producer_epoch = b.producer_epoch
              and o.transaction_number = b.transaction_number and o.partition_id = in_partition_id limit 1) tp
            on d.outcome is null)
    select max(l.base_offset), count(*), coalesce(sum(l.record_count), 0),
           coalesce(jsonb_agg(to_jsonb(l) order by l.base_offset) filter (where l.rules <> '{}'), '[]')
    into next_after, batches, records, broken
    from looked l;
end $$;
