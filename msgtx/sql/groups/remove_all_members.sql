-- remove_all_members(after, most) removes the members of every group, after a failover: their clients are refused for good,
-- and would hold their partitions until their sessions are over. → how many, after `most` groups. The member in whose name
-- receive acquires stays: its callers have no client. A group that is locked keeps its members.
--   in_after, next_after   where the last call came to: group id; null: from the start, and: this was the end
-- Locks the groups (exclusive), one in each call of a loop. Reads group_member, consumer_group, share_group. Deletes and
-- writes through take_out_members. Flushed.
-- right: owner
-- plan: look-ups
create function msgtx.remove_all_members(
    in_after bigint[] default null, most int default 1, out removed int, out next_after bigint[]
) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
declare
    one record;
    gone bigint[];
    looked_at int := 0;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    removed := 0;
    for one in
        select g.group_id, g.name, s.group_id is not null as is_share
        from msgtx.consumer_group g
        left join lateral (select s.group_id from msgtx.share_group s where s.group_id = g.group_id limit 1) s on true
        where g.group_id > coalesce(in_after[1], -1) order by g.group_id limit most
    loop
        looked_at := looked_at + 1;
        next_after := array[one.group_id];
        begin
            ignored := msgtx.lock_group(one.name);
            gone := array(
                select m.member_number from msgtx.group_member m
                where m.group_id = one.group_id and not (one.is_share and m.member_id like 'sql:%') order by 1);
            if gone <> '{}' then
                ignored := msgtx.take_out_members(one.group_id, gone) is not null;
                removed := removed + cardinality(gone);
            end if;
        exception when lock_not_available then
            raise warning 'group % is locked, its members stay until their sessions are over', one.name;
        end;
    end loop;
    if looked_at < most then
        next_after := null;
    end if;
end $$;
