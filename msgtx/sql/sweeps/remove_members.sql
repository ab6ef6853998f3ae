-- remove_members(after, most) removes members whose session is over from their groups, after looking at `most` of them; →
-- how many. One bad row does not stop the rest.
-- Locks the leases (share); tries the groups' locks and never waits. Reads group_member, group_heartbeat, consumer_group.
-- Deletes and writes through take_out_members. Flushed.
-- right: admin of all topics
-- plan: look-ups, nested loops
create function msgtx.remove_members(
    in_after bigint[] default null, most int default 500, shards int[] default null, epochs int[] default null,
    out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    moment timestamptz := msgtx.clock();
    candidate record;
    gone bigint[];
    done int[] := '{}';
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    ignored := msgtx.require_leases(shards, epochs);
    for candidate in
        select m.member_number, m.group_id,
               msgtx.is_session_over(newest.heartbeat_at, m.session_timeout_ms, moment) as overdue
        from msgtx.group_member m
        left join lateral msgtx.newest_heartbeat(m.member_number) newest on true
        where m.member_number > coalesce(in_after[1], -1)
        order by m.member_number limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[candidate.member_number];
        if candidate.overdue and candidate.group_id <> all (done)
            and (shards is null or candidate.group_id % 50 = any(shards)) then
            done := done || candidate.group_id;  -- all of its members, below
            begin
                if msgtx.try_lock_group((select g.name from msgtx.consumer_group g where g.group_id = candidate.group_id))
                    then
                    -- After the lock, and all of the group at once: each change is a generation.
                    gone := array(select o.member_number from msgtx.overdue_members(candidate.group_id, moment) o);
                    if gone <> '{}' then
                        ignored := msgtx.take_out_members(candidate.group_id, gone) is not null;
                        removed := removed + cardinality(gone);
                    end if;
                end if;
            exception when others then
                raise warning 'members of group % could not be removed: %', candidate.group_id, sqlerrm;
            end;
        end if;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
