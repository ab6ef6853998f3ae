-- lacking_right(cans, topic, partition) → the words for a refusal with 42501: the missing right, its resource, and the
-- command by which the owner of the schema grants it. The topic is null when the caller must not learn its name.
create function msgtx.lacking_right(cans text[], topic_name text, partition_id int) returns text language plpgsql stable
as $$
begin
    return format(
        'role %s lacks the right to %s on %s: the owner of the schema gives it with `msgtx db grant --role %s --can %s '
        '--topic %s`',
        msgtx.caller(), array_to_string(cans, ' or '),
        coalesce('topic ' || topic_name, 'the topic of partition ' || partition_id),
        quote_ident(msgtx.caller()), cans[1], coalesce(topic_name, 'TOPIC'));
end $$;
