-- require_right_on_topic(can, topic) raises 42501 if the caller lacks this right on topics of this name, whether there is
-- one or not. Called for callers that do not act for the owner.
create function msgtx.require_right_on_topic(can text, topic_name text) returns boolean language plpgsql stable as $$
declare
    patterns text[] := msgtx.patterns_of_caller(array[can]);
begin
    if patterns is null then
        return true;
    end if;
    if topic_name like any(patterns) is not true then
        raise exception using errcode = '42501', message = msgtx.lacking_right(array[can], topic_name, null),
            detail = jsonb_build_object('role', msgtx.caller(), 'right', can, 'topic', topic_name);
    end if;
    return true;
end $$;
