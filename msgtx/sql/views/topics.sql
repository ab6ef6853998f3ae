-- View topics: each topic with its settings and how many partitions it has. Of those on which the caller has any right.
-- right: any
create view msgtx.topics with (security_barrier) as
select s.name, n.partitions,
       -- make generate: settings.shown topic
       s.cleanup_policy, s.retention_ms, s.retention_bytes, s.delete_retention_ms, s.max_message_bytes,
       s.timestamp_type,
       -- end
       s.created_at
from msgtx.topic s
cross join lateral (select count(*)::int as partitions from msgtx.partition p where p.topic_id = s.topic_id) n
where coalesce(s.topic_id = any((select msgtx.topics_of_caller('{produce,consume,observe}'))::int[]), true);
