-- View committed_records: the committed records below each partition's last stable offset, as consumers see them. Its
-- ranges are immutable (I14). Of the topics that the caller may consume.
-- after: stored_records
-- right: consume
create view msgtx.committed_records with (security_barrier) as
select t.name as topic, p.partition_index as partition, r."offset", r."timestamp", r.key, r.value, r.header_keys,
       r.header_values, p.partition_id, r.base_offset, r.appended_at, r.producer_id, r.producer_epoch, r.transaction_number
from msgtx.topic t
join msgtx.partition p on p.topic_id = t.topic_id
cross join lateral (select msgtx.last_stable_offset(p.partition_id) as bound offset 0) s
join msgtx.stored_records r on r.partition_id = p.partition_id
where coalesce(p.topic_id = any((select msgtx.topics_of_caller('{consume}'))::int[]), true)
  and r.base_offset < s.bound and r."offset" < s.bound
  and (r.transaction_number is null
       or msgtx.is_committed(r.partition_id, r.base_offset, r.producer_id, r.producer_epoch, r.transaction_number));
