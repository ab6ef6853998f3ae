-- View topics: each topic with its settings and how many partitions it has. Of those on which the caller has any right.
create view msgtx.topics with (security_barrier) as
select t.name, n.partitions, t.cleanup_policy, t.retention_ms, t.retention_bytes, t.delete_retention_ms, t.max_message_bytes,
       t.timestamp_type, t.created_at
from msgtx.topic t
cross join lateral (select count(*)::int as partitions from msgtx.partition p where p.topic_id = t.topic_id) n
where coalesce(t.topic_id = any((select msgtx.topics_of_caller('{produce,consume,admin}'))::int[]), true);
