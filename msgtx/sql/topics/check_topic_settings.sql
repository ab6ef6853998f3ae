-- check_topic_settings(settings) raises (MX040) if one of a topic's settings (JSON) is unknown or out of range. Null counts
-- as not named.
create function msgtx.check_topic_settings(settings jsonb) returns boolean language plpgsql stable as $$
declare
    wrong record;
begin
    select w.sentence, w.facts into wrong from msgtx.why_not_set('topic', jsonb_strip_nulls(settings)) w;
    if found then
        raise exception using errcode = 'MX040', message = wrong.sentence, detail = wrong.facts;
    end if;
    return true;
end $$;
