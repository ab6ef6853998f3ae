-- dead_letter_partition(group, partition) → where a share group's dead letters of a partition go; null while there is no
-- such topic. Reads partition, topic.
create function msgtx.dead_letter_partition(group_name text, in_partition_id int) returns int language plpgsql stable as $$
declare
    ids int[];
begin
    ids := array(
        select p.partition_id from msgtx.topic t
        cross join lateral (
            select p.partition_id, p.partition_index from msgtx.partition p where p.topic_id = t.topic_id) p
        where t.name = msgtx.dead_letter_topic_of(group_name) order by p.partition_index);
    return ids[1 + (select p.partition_index from msgtx.partition p
        where p.partition_id = in_partition_id) % nullif(cardinality(ids), 0)];
end $$;
