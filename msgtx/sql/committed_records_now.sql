-- View committed_records_now: every committed record of this snapshot, also behind open transactions. One statement over it
-- sees all effects of a transaction or none (I6), together with business rows.
-- after: records
create view msgtx.committed_records_now as
select r.topic, r.partition, r."offset", r."timestamp", r.key, r.value, r.header_keys, r.header_values,
       r.partition_id, r.base_offset, r.appended_at, r.producer_id, r.producer_epoch, r.transaction_number
from msgtx.records r
where r.transaction_number is null
   or msgtx.is_committed(r.partition_id, r.base_offset, r.producer_id, r.producer_epoch, r.transaction_number);
