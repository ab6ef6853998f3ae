-- next_producer_id() → a new producer id, which identifies the caller's role: see tag_of_role.
create function msgtx.next_producer_id() returns bigint language sql volatile
return nextval('msgtx.producer_id_sequence')
    + case when msgtx.acts_for_owner() then 0 else msgtx.tag_of_role(msgtx.caller()) << 40 end;
