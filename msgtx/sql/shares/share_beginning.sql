-- share_beginning(group, partition, log_start, moment) → where a share group begins in a partition that it has not met. What
-- was made since the group began with the topic, or with its name, is read from its beginning. Else the client has not
-- joined for the topic, and the group begins with it here (share_start_offsets). Reads partition, topic, share_topic.
create function msgtx.share_beginning(g msgtx.share_group, in_partition_id int, log_start bigint, moment timestamptz)
returns bigint language plpgsql stable as $$
begin
    return case when exists (
            select from msgtx.partition p
            cross join lateral (select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
            cross join lateral (
                select from msgtx.share_topic k where k.group_id = g.group_id and k.topic_name = t.name limit 1) known
            where p.partition_id = in_partition_id)
        then log_start else (select s.start_offset from msgtx.share_start_offsets(g, array[in_partition_id], moment) s) end;
end $$;
