-- letters_of_record(topic, partition, offset, stored_at) → the committed dead letters that name this record in their
-- headers, in topics that the caller may consume or observe. A partition is one of dead letters if its last row holds one;
-- of each the last 1,000 rows are looked at, to the time at which the record was stored.
-- Reads topic, partition, record_batch and, through is_committed, transaction tables.
-- right: consume, observe
-- null: group_name, reason
-- plan: look-ups
create function msgtx.letters_of_record(in_topic text, in_partition int, in_offset bigint, in_stored_at timestamptz)
returns table (topic text, partition int, record_offset bigint, group_name text, reason text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    rows_at_most constant int := 1000;
    mark constant text := 'msgtx.dead-letter.offset';
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
begin
    return query
    select t.name, p.partition_index, b.base_offset + coalesce(b.offset_deltas[u.ordinal], u.ordinal - 1),
           h.named ->> 'msgtx.dead-letter.group',
           case when msgtx.shows_records(p.partition_id) then h.named ->> 'msgtx.dead-letter.reason' end
    from msgtx.topic t
    join msgtx.partition p on p.topic_id = t.topic_id
    cross join lateral msgtx.last_row_of(p.partition_id) newest
    cross join lateral (
        select b.* from msgtx.record_batch b
        where b.partition_id = p.partition_id order by b.base_offset desc limit rows_at_most) b
    cross join lateral unnest(b.header_counts) with ordinality u(header_count, ordinal)
    cross join lateral (
        select coalesce(sum(n), 0)::int as before from unnest(b.header_counts[:u.ordinal - 1]) n) s
    cross join lateral (
        select msgtx.header_object(b.header_keys[s.before + 1:s.before + u.header_count],
                                   b.header_values[s.before + 1:s.before + u.header_count]) as named) h
    where coalesce(t.topic_id = any(visible), true) and mark = any(newest.header_keys)
      and b.appended_at >= in_stored_at and convert_to(in_offset::text, 'UTF8') = any(b.header_values)
      and h.named ->> mark = in_offset::text and h.named ->> 'msgtx.dead-letter.topic' = in_topic
      and h.named ->> 'msgtx.dead-letter.partition' = in_partition::text
      and (b.transaction_number is null or msgtx.is_committed(
              b.partition_id, b.base_offset, b.producer_id, b.producer_epoch, b.transaction_number))
    order by t.name, p.partition_index, 3;
end $$;
