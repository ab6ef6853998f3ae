-- key_hash(key) → the number by which share groups compare keys; null without a key.
create function msgtx.key_hash(key bytea) returns bigint language sql immutable
return ('x' || left(md5(key), 16))::bit(64)::bigint;
