-- View stored_records: one row per record, all of them, of all topics: the basis of the views for other roles. No role
-- is granted it: an owner may use it for joins, where the planner cannot see through the view `records`.
create view msgtx.stored_records as
select t.name as topic, p.partition_index as partition,
       r.base_offset + coalesce(r.offset_deltas[u.ordinal], u.ordinal - 1) as "offset",
       coalesce(u.record_timestamp, r.max_timestamp) as "timestamp",
       u.record_key as key, u.record_value as value,
       case when u.header_count > 0 then r.header_keys[h.before + 1 : h.before + u.header_count] end as header_keys,
       case when u.header_count > 0 then r.header_values[h.before + 1 : h.before + u.header_count] end as header_values,
       r.partition_id, r.base_offset, r.appended_at,
       r.producer_id, r.producer_epoch, r.transaction_number, t.topic_id
from msgtx.record_batch r
join msgtx.partition p on p.partition_id = r.partition_id
join msgtx.topic t on t.topic_id = p.topic_id
cross join lateral unnest(r.keys, r."values", r.timestamps, r.header_counts) with ordinality
    u(record_key, record_value, record_timestamp, header_count, ordinal)
left join lateral (
    select coalesce(sum(c.header_count), 0)::int as before
    from unnest(r.header_counts[1 : u.ordinal::int - 1]) c(header_count)) h on u.header_count > 0
where r.base_offset + coalesce(r.offset_deltas[u.ordinal], u.ordinal - 1) >= p.log_start_offset;
