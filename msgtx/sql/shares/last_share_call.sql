-- last_share_call(group, member) → the number of the last call of this member whose answers were applied; 0: of none; null:
-- the group does not know the member. A member asks after a failover whether the database has the answers it acknowledged.
-- Reads consumer_group, group_member, share_call.
-- right: consume
-- null: value
-- plan: look-ups
create function msgtx.last_share_call(group_name text, in_member_number bigint) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean := msgtx.acts_for_owner() or msgtx.require_names('group', array[group_name]);
begin
    return (
        select coalesce((select c.call_number from msgtx.share_call c
                         where c.member_number = m.member_number order by c.call_number desc limit 1), 0)
        from msgtx.group_member m
        where m.member_number = in_member_number
          and m.group_id = (select g.group_id from msgtx.consumer_group g where g.name = group_name));
end $$;
