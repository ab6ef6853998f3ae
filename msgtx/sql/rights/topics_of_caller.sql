-- topics_of_caller(cans) → the ids of the topics on which the caller has one of these rights; null: on all of them. Views
-- ask it once for a statement. Reads topic, role_right.
-- right: any
create function msgtx.topics_of_caller(cans text[]) returns int[] language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
declare
    patterns text[];
begin
    if msgtx.acts_for_owner() then
        return null;
    end if;
    patterns := msgtx.patterns_of_caller(cans);
    if patterns is null then
        return null;
    end if;
    return array(select t.topic_id from msgtx.topic t where t.name like any(patterns));
end $$;
