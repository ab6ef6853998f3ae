-- begin_dead_letters(group_id, topic) makes a new share group begin behind the dead letters in its topic: a redrive
-- sends those written from now on. Existing ones with this group's name are of a deleted group.
-- The caller holds the group's lock. Reads topic, partition, record_batch. Writes share_state.
create function msgtx.begin_dead_letters(in_group_id int, letters text) returns boolean language plpgsql volatile as $$
begin
    insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans)
    select in_group_id, p.partition_id, 1, greatest(p.log_start_offset, coalesce(newest.last_offset + 1, 0)), '{}'
    from msgtx.topic t
    join msgtx.partition p on p.topic_id = t.topic_id
    left join lateral msgtx.last_row_of(p.partition_id) newest on true
    where t.name = letters
    order by p.partition_id;
    return true;
end $$;
