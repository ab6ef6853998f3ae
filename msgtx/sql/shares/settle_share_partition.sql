-- settle_share_partition(group_id, partition, most, max_bytes) writes the current spans of a share partition
-- (current_spans), and dead letters for rejected records and for those at their delivery limit. → how many letters it
-- wrote, of how many bytes, and whether some are left for later (bury_records). Of a group that is gone nothing is written.
-- The caller holds the share partition's lock; tries that of the partition of dead letters. Reads share_group,
-- consumer_group, partition. Writes share_state, and through park_delayed share_parked, through bury_records record_batch.
create function msgtx.settle_share_partition(
    in_group_id int, in_partition_id int, most int, max_bytes bigint, out is_left boolean, out buried int, out bytes bigint
) language plpgsql volatile as $$
declare
    moment constant timestamptz := msgtx.clock();
    log_start constant bigint := coalesce((
        select p.log_start_offset from msgtx.partition p where p.partition_id = in_partition_id), 0);
    g msgtx.share_group;
    state msgtx.share_state;
    before msgtx.share_state;
begin
    is_left := false;
    buried := 0;
    bytes := 0;
    select s.* into g from msgtx.share_group s where s.group_id = in_group_id;
    select s.* into state from msgtx.share_state_of(in_group_id, in_partition_id) s;
    if g.group_id is null or state.version is null then
        return;
    end if;
    before := state;
    select d.spans, d.next_due into state.spans, state.next_due
    from msgtx.park_delayed(
        in_group_id, in_partition_id, g.ordering, moment,
        msgtx.current_spans(g, in_partition_id, state.spans, log_start, moment), state.next_due) d;
    select b.spans, b.buried, b.bytes, b.is_left into state.spans, buried, bytes, is_left
    from msgtx.bury_dead(
        (select c.name from msgtx.consumer_group c where c.group_id = in_group_id), in_partition_id, g.delivery_count_limit,
        most, max_bytes, state.spans) b;
    if state is distinct from before then
        state.version := state.version + 1;
        insert into msgtx.share_state values (state.*);
    end if;
end $$;
