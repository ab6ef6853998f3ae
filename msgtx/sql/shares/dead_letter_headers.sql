-- dead_letter_headers() → the names of the headers that bury_records adds after a dead letter's own.
create function msgtx.dead_letter_headers() returns text[] language sql immutable as $$
    select array[
        'msgtx.dead-letter.group', 'msgtx.dead-letter.topic', 'msgtx.dead-letter.partition', 'msgtx.dead-letter.offset',
        'msgtx.dead-letter.deliveries', 'msgtx.dead-letter.reason', 'msgtx.dead-letter.member', 'msgtx.dead-letter.time',
        'msgtx.dead-letter.timestamp']
$$;
