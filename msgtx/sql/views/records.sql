-- View records: one row per record, all of them, also aborted and open ones, of the topics that the caller may consume.
-- after: stored_records
-- right: consume
create view msgtx.records with (security_barrier) as
select r.topic, r.partition, r."offset", r."timestamp", r.key, r.value, r.header_keys, r.header_values,
       r.partition_id, r.base_offset, r.appended_at, r.producer_id, r.producer_epoch, r.transaction_number
from msgtx.stored_records r
where coalesce(r.topic_id = any((select msgtx.topics_of_caller('{consume}'))::int[]), true);
