-- tag_of_role(role) → the bits from 40 on of the producer ids of a role without the schema's rights, so that an id
-- without a row shows its role. 1 to 2²²−1; ids of the owner, and those of earlier versions, have 0 there.
create function msgtx.tag_of_role(role_name name) returns bigint language sql immutable
return greatest(1, ('x' || encode(substr(sha256(convert_to(role_name::text, 'UTF8')), 1, 4), 'hex'))::bit(32)::bigint >> 10);
