-- acknowledge(receipt, answer, delay, reason) answers for a record that receive has returned: see acknowledge_all.
-- right: consume
create function msgtx.acknowledge(
    receipt text, answer text default 'accept', delay interval default null, reason text default null
) returns void language sql volatile
begin atomic
    select msgtx.acknowledge_all(array[receipt], answer, delay, reason);
end;
