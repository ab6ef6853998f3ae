-- raise_generation(group_id, stale) → the group's next generation; stale: its assignment was made of other members. Members
-- are woken after the COMMIT. The caller holds the group's lock exclusively.
-- Writes consumer_group, wake_up. Flushed: a generation must not be given out twice.
create function msgtx.raise_generation(in_group_id int, in_stale boolean) returns int language plpgsql volatile as $$
declare
    raised int;
    ignored boolean := msgtx.flush_at_commit();
begin
    update msgtx.consumer_group g set generation = g.generation + 1, stale = g.stale or in_stale, changed_at = msgtx.clock()
    where g.group_id = in_group_id returning g.generation into raised;
    insert into msgtx.wake_up (words) values ('g' || in_group_id);
    return raised;
end $$;
