-- View committed_records_now: every committed record of this snapshot, also behind open transactions. One statement
-- over it sees all effects of a transaction or none (I6), together with business rows. Of the topics that the caller
-- may consume.
-- after: stored_records
-- right: consume
create view msgtx.committed_records_now with (security_barrier) as
select r.topic, r.partition, r."offset", r."timestamp", r.key, r.value, r.header_keys, r.header_values,
       r.partition_id, r.base_offset, r.appended_at, r.producer_id, r.producer_epoch, r.transaction_number
from msgtx.stored_records r
where coalesce(r.topic_id = any((select msgtx.topics_of_caller('{consume}'))::int[]), true)
  and (r.transaction_number is null
       or msgtx.is_committed(r.partition_id, r.base_offset, r.producer_id, r.producer_epoch, r.transaction_number));
