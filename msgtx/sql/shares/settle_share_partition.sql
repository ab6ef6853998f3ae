-- settle_share_partition(group_id, partition, most, max_bytes) writes the spans of a share partition that hold now
-- (current_spans), and dead records as dead letters: those that were rejected, or delivered as often as they may be and not
-- acknowledged. → how many letters it wrote, of how many bytes, and whether some are left for later (bury_records). Of a
-- group that is gone nothing is written. The caller holds the share partition's lock; tries that of the partition of dead
-- letters. Reads share_group, consumer_group, partition. Writes share_state, and through park_delayed share_parked, through
-- bury_records record_batch.
create function msgtx.settle_share_partition(
    in_group_id int, in_partition_id int, most int, max_bytes bigint, out is_left boolean, out buried int, out bytes bigint
) language plpgsql volatile as $$
declare
    moment constant timestamptz := msgtx.clock();
    g msgtx.share_group;
    state record;
    spans msgtx.share_span[];
    dead msgtx.share_span[];
    left_over msgtx.share_span[];
    found_due timestamptz;
begin
    is_left := false;
    buried := 0;
    bytes := 0;
    select s.* into g from msgtx.share_group s where s.group_id = in_group_id;
    select s.version, s.next_offset, s.next_token, s.spans, s.next_due, s.waiting_keys into state from msgtx.share_state s
    where s.group_id = in_group_id and s.partition_id = in_partition_id order by s.version desc limit 1;
    if g.group_id is null or state.version is null then
        return;
    end if;
    select d.spans, d.next_due into spans, found_due
    from msgtx.park_delayed(
        in_group_id, in_partition_id, g.ordering, moment, msgtx.current_spans(g, in_partition_id, state.spans, coalesce((
            select p.log_start_offset from msgtx.partition p where p.partition_id = in_partition_id), 0), moment),
                state.next_due) d;
    dead := array(
        select u from unnest(spans) u
        where u.status = 'rejected' or u.status = 'available' and u.delivery_count >= g.delivery_count_limit);
    if dead <> '{}' then
        select b.* into left_over, buried, bytes from msgtx.bury_records((
            select c.name from msgtx.consumer_group c where c.group_id = in_group_id), in_partition_id, dead, most,
                max_bytes) b;
        is_left := left_over <> '{}';
        spans := array(
            select u from unnest(spans) u
            where not (u.status = 'rejected' or u.status = 'available' and u.delivery_count >= g.delivery_count_limit))
                || left_over;
    end if;
    if spans is distinct from state.spans or found_due is distinct from state.next_due then
        insert into msgtx.share_state (group_id, partition_id, version, next_offset, next_token, spans, next_due,
            waiting_keys)
        values (in_group_id, in_partition_id, state.version + 1, state.next_offset, state.next_token, spans, found_due,
                state.waiting_keys);
    end if;
end $$;
