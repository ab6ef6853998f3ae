-- topic_id_of(name) → the id of a topic; raises if there is none. Reads topic.
create function msgtx.topic_id_of(topic text) returns int language plpgsql stable as $$
declare
    found_id constant int := (select t.topic_id from msgtx.topic t where t.name = topic);
begin
    if found_id is null then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', quote_nullable(topic)),
            detail = jsonb_build_object('topic', topic);
    end if;
    return found_id;
end $$;
