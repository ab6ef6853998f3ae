-- partition_of_key(key, partitions) → the index of a key's partition, as the default partitioner of the clients chooses it;
-- null for the empty key, which is keyless.
create function msgtx.partition_of_key(key bytea, partition_count int) returns int language sql immutable parallel safe
return case when octet_length(key) > 0 then (msgtx.crc32(key) % partition_count)::int end;
