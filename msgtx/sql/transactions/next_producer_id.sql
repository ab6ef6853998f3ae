-- next_producer_id() → a producer id that was never given out, for the caller, whose role it identifies: see tag_of_role.
create function msgtx.next_producer_id() returns bigint language sql volatile
return nextval('msgtx.producer_id_sequence')
    + case when msgtx.acts_for_owner() then 0 else msgtx.tag_of_role(msgtx.caller()) << 40 end;
