-- show_acknowledgements(name) → the acknowledgements of share groups that wait for a transaction's decision, or are decided
-- and not settled yet; in groups and topics that the caller may see. Settled ones are not stored. At most 1,000 partitions
-- of groups are looked at. Reads share_pending, share_state, consumer_group, partition, topic.
-- right: consume, observe
-- null: answer
-- plan: look-ups, nested loops
create function msgtx.show_acknowledgements(
    in_producer_id bigint, in_producer_epoch int, in_transaction_number bigint)
returns table (
    group_name text, topic text, partition_index int, first_offset bigint, last_offset bigint, answer text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    observed constant int[] := msgtx.topics_of_caller('{observe}');
begin
    return query
    select g.name, t.name, p.partition_index, u.first_offset, u.last_offset, u.answer
    from (
        select s.group_id, s.partition_id from msgtx.share_pending s
        where s.producer_id = in_producer_id and s.producer_epoch = in_producer_epoch
          and s.transaction_number = in_transaction_number
        order by s.group_id, s.partition_id limit 1000) s
    cross join lateral (
        select w.spans from msgtx.share_state w
        where w.group_id = s.group_id and w.partition_id = s.partition_id order by w.version desc limit 1) v
    cross join lateral unnest(v.spans) u
    cross join lateral (select g.name from msgtx.consumer_group g where g.group_id = s.group_id limit 1) g
    cross join lateral (select p.* from msgtx.partition p where p.partition_id = s.partition_id limit 1) p
    cross join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where u.producer_id = in_producer_id and u.producer_epoch = in_producer_epoch
      and u.transaction_number = in_transaction_number
      and coalesce(p.topic_id = any(visible), true)
      and (coalesce(p.topic_id = any(observed), true) or msgtx.may_use('group', g.name))
    order by g.name, t.name, p.partition_index, u.first_offset;
end $$;
