-- topic_to_read(verb, topic, group, …) → the id of the topic that take or receive is to read; raises if an argument cannot
-- be, or the SQL transaction is read only. Reads topic.
create function msgtx.topic_to_read(
    verb text, topic text, group_name text, max_records bigint, max_bytes bigint, auto_offset_reset text default 'earliest'
) returns int language plpgsql stable as $$
declare
    most_records constant int := 10000;
    most_bytes constant bigint := 67108864;  -- the server keeps the whole answer
    wrong text;
begin
    if current_setting('transaction_read_only') = 'on' then
        raise exception using errcode = '25006', message = format(
            'msgtx.%s writes how far a group has come, and this transaction is read only: call it on the primary server, '
            'in a transaction that may write; msgtx.read reads without a group', verb);
    end if;
    wrong := case
        when octet_length(group_name) between 1 and 1000 is not true then 'group_name'
        when max_records between 1 and most_records is not true then 'max_records'
        when max_bytes between 1 and most_bytes is not true then 'max_bytes'
        when auto_offset_reset in ('earliest', 'latest', 'none') is not true then 'auto_offset_reset' end;
    if wrong is not null then
        raise exception using errcode = 'MX042', message = format(
            'msgtx.%s(%L, %L): the group''s name has 1 to 1000 bytes, max_records is 1 to %s, max_bytes is 1 to %s, '
            'auto_offset_reset is earliest, latest or none; %s is not', verb, topic, left(group_name, 50), most_records,
            most_bytes, wrong),
            detail = jsonb_build_object('name', wrong);
    end if;
    return msgtx.topic_id_of(topic);
end $$;
