-- last_share_call(group, member) → the number of the last call of this member whose answers were applied; 0: of none.
-- After a failover a member asks whether the database has its acknowledged answers; also one that it does not know any more.
-- 0, too, for a member of another group: the caller may not use that one. Reads group_member, consumer_group, share_call.
-- right: consume
-- plan: look-ups
create function msgtx.last_share_call(group_name text, in_member_number bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
begin
    return coalesce((
        select c.call_number from msgtx.share_call c
        where c.member_number = in_member_number and not exists (
            select from msgtx.group_member m
            cross join lateral (select g.name from msgtx.consumer_group g where g.group_id = m.group_id limit 1) g
            where m.member_number = in_member_number and g.name <> group_name)
        order by c.call_number desc limit 1), 0);
end $$;
