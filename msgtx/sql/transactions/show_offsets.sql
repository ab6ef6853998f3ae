-- show_offsets(name, after, most) → the group offsets that were committed with a transaction, or wait for its decision, as
-- far as they are stored: a sweep removes an offset that a newer one has replaced. Those of the groups and topics that the
-- caller may see. A seal names its rows. Else they are looked for among the last 100 rows of the next `most` pairs of group
-- and partition, from the one behind `after` (decision 0160). next_after: where the look came to, null at the end; a row
-- without a group tells nothing else.
-- Reads transaction_decision, transaction_seal, group_offset, consumer_group, partition, topic, swept.
-- right: consume, observe
-- null: group_name, topic, partition_index, committed_offset, committed_at
-- plan: look-ups, nested loops
create function msgtx.show_offsets(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint, in_after int[], most int)
returns table (
    group_name text, topic text, partition_index int, committed_offset bigint, committed_at timestamptz, next_after int[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    observed constant int[] := msgtx.topics_of_caller('{observe}');
    rows_each constant int := 100;
    sealed msgtx.transaction_seal;
    group_ids int[];
    partition_ids int[];
    lows bigint[];  -- the only row of a pair that is asked for; null: any
    came_to int[];
begin
    select s.* into sealed from msgtx.seal_of(in_producer_id, in_producer_epoch, in_transaction_number) s;
    if sealed.commit_sequences <> '{}' then
        group_ids := sealed.group_ids;
        partition_ids := sealed.group_partitions;
        lows := sealed.commit_sequences;
    elsif sealed.kind is null and exists (
        select from msgtx.decision_of(in_producer_id, in_producer_epoch, in_transaction_number) d
        where d.outcome = 'COMMIT') then
        select array_agg(k.key_1::int), array_agg(k.key_2::int) into group_ids, partition_ids
        from msgtx.keys_after('offset', coalesce(in_after[1], -1), coalesce(in_after[2], -1), most) k;
        if cardinality(group_ids) = most then
            came_to := array[group_ids[most], partition_ids[most]];
        end if;
    end if;
    return query
    select g.name, t.name, p.partition_index, o.committed_offset, o.committed_at, came_to
    from unnest(group_ids, partition_ids, lows) k(group_id, partition_id, commit_sequence)
    cross join lateral (
        select o.* from msgtx.group_offset o
        where o.group_id = k.group_id and o.partition_id = k.partition_id
          and o.commit_sequence <= coalesce(k.commit_sequence, 9223372036854775807)
        order by o.commit_sequence desc limit rows_each) o
    cross join lateral (select g.name from msgtx.consumer_group g where g.group_id = k.group_id limit 1) g
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = k.partition_id limit 1) p
    cross join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where o.producer_id = in_producer_id and o.producer_epoch = in_producer_epoch
      and o.transaction_number = in_transaction_number
      and coalesce(p.topic_id = any(visible), true)
      and (coalesce(p.topic_id = any(observed), true) or msgtx.may_use('group', g.name))
    order by g.name, t.name, p.partition_index, o.commit_sequence;
    if not found then
        next_after := came_to;
        return next;
    end if;
end $$;
