-- View share_spans: the records that share groups have in flight now or parked, a row for each span of records of one state.
-- A record between start_offset and next_offset of share_partitions that is in no span is done.
--   state       available: to be delivered again, `reason` says why; acquired: a member has it, until locked_until; pending:
--               answered with `answer` in a transaction that is not decided; rejected: it becomes a dead letter; delayed:
--               until due_at; waiting: for an earlier one with its key
--   member_id   who has it, or had it last
-- On topics that the caller may observe: all groups. On topics that it may only consume: the groups that it may use.
-- right: consume, observe
create view msgtx.share_spans with (security_barrier) as
select s.group_name, s.topic, s.partition, s.first_offset, s.last_offset, s.state, s.delivery_count, s.reason, s.member_id,
       s.client_host, s.client_process, s.locked_until, s.due_at, s.producer_id, s.producer_epoch, s.transaction_number,
           s.answer, s.partition_id
from msgtx.spans_of_share_groups() s;
