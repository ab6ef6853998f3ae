-- require_rights(cans, partitions) raises 42501 if the caller has none of these rights on the topic of one of the
-- partitions. One that does not exist is no secret: the call answers as it does to any role. A topic's name is shown to
-- roles with some right on it, else it is a partition. Called for callers that do not act for the owner.
-- Reads partition, topic, role_right.
-- plan: look-ups
create function msgtx.require_rights(cans text[], partition_ids int[]) returns boolean language plpgsql stable as $$
declare
    patterns text[] := msgtx.patterns_of_caller(cans);
    lacking record;
begin
    if patterns is null then
        return true;
    end if;
    select asked.partition_id, t.name into lacking
    from unnest(partition_ids) asked(partition_id)
    cross join lateral (
        select p.topic_id from msgtx.partition p where p.partition_id = asked.partition_id limit 1) p
    cross join lateral (
        select t.name from msgtx.topic t where t.topic_id = p.topic_id limit 1) t
    where not t.name like any(patterns)
    limit 1;
    if found then
        patterns := msgtx.patterns_of_caller('{produce,consume,observe}');
        raise exception using errcode = '42501', message = msgtx.lacking_right(
            cans, case when lacking.name like any(patterns) then lacking.name end, lacking.partition_id),
            detail = jsonb_build_object('role', msgtx.caller(), 'right', cans[1], 'partition_id', lacking.partition_id,
                'topic', case when lacking.name like any(patterns) then lacking.name end);
    end if;
    return true;
end $$;
