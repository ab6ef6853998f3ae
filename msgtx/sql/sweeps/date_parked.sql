-- date_parked(shards, moment) makes released records due whose delay began further in the future than it lasts (is_ahead): a
-- clock was set back. At most 100 share partitions at once.
-- Tries the locks of share partitions and never waits. Updates share_parked, writes share_state.
create function msgtx.date_parked(shards int[], moment timestamptz) returns int language plpgsql volatile as $$
declare
    place record;
    dated int := 0;
    ignored boolean;
begin
    for place in
        select distinct p.group_id, p.partition_id from msgtx.share_parked p
        where p.parked_at > moment and p.parked_at - moment > p.due_at - p.parked_at
          and (shards is null or p.group_id % 50 = any(shards))
        limit 100
    loop
        begin
            continue when not msgtx.try_lock_share_partition(place.group_id, place.partition_id);
            update msgtx.share_parked p set parked_at = moment, due_at = moment
            where p.group_id = place.group_id and p.partition_id = place.partition_id
              and p.parked_at > moment and p.parked_at - moment > p.due_at - p.parked_at;
            insert into msgtx.share_state (
                group_id, partition_id, version, next_offset, next_token, spans, next_due, waiting_keys)
            select s.group_id, s.partition_id, s.version + 1, s.next_offset, s.next_token, s.spans,
                   least(s.next_due, moment), s.waiting_keys
            from msgtx.share_state_of(place.group_id, place.partition_id) s;
            dated := dated + 1;
        exception when others then
            raise warning 'share group % on partition %: delays could not be dated: %', place.group_id, place.partition_id,
                sqlerrm;
        end;
    end loop;
    return dated;
end $$;
