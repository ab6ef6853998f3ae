-- refuse_right(cans, topic, partition) raises 42501: which right the caller lacks, where, and what the owner runs to give it.
-- The topic is null when the caller must not learn its name.
create function msgtx.refuse_right(cans text[], topic_name text, partition_id int) returns boolean language plpgsql stable as $$
begin
    raise exception using errcode = '42501', message = format(
        'role %s lacks the right to %s on %s: the owner of the schema gives it with `msgtx db grant --role %s --can %s --topic %s`',
        msgtx.caller(), array_to_string(cans, ' or '),
        coalesce('topic ' || topic_name, 'the topic of partition ' || partition_id, 'this topic'),
        quote_ident(msgtx.caller()), cans[1], coalesce(topic_name, 'TOPIC'));
end $$;
