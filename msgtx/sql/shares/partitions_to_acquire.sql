-- partitions_to_acquire(group, partitions, moment, most) → the partitions among these in which a share group may have
-- records to acquire, the first ones of them: the others have nothing new, and nothing to be delivered again. A look by
-- the rules of acquire_records is a lock and some 0.1 to 0.7 ms, this one 0.01, as PL/pgSQL keeps its plan. Locks
-- nothing: later changes are for the next call. Reads partition, record_batch, share_state, group_member, group_heartbeat.
create function msgtx.partitions_to_acquire(
    g msgtx.share_group, partition_ids int[], moment timestamptz, most int)
returns setof int language plpgsql stable as $$
#variable_conflict use_column
begin
    return query
    select a.partition_id
    from unnest(partition_ids) a(partition_id)
    cross join lateral (
        select p.log_start_offset from msgtx.partition p where p.partition_id = a.partition_id limit 1) p
    left join lateral msgtx.share_state_of((g).group_id, a.partition_id) s on true
    left join lateral msgtx.last_row_of(a.partition_id) tail on true
    where s.next_offset is null or s.next_offset < p.log_start_offset or s.next_offset <= tail.last_offset
       or s.next_due <= moment or s.waiting_keys <> '{}'
       or exists (
           select from unnest(s.spans) u
           left join lateral msgtx.session_of(u.member_number, moment) o on true
           where u.status <> 'acquired' or not msgtx.is_running(u.locked_until, (g).longest_lock_ms, moment)
              or o.is_over is not false)
    limit most;
end $$;
