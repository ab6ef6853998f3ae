-- shard_of(transactional_id, number) → the coordinator's shard, 0 to 49: of a transactional id Java's String.hashCode on its
-- UTF-16 units, made positive as Kafka does it (Integer.MIN_VALUE becomes 0), modulo 50. What has no transactional id (plain
-- producers, partitions, groups) belongs to the shard of its number modulo 50.
create function msgtx.shard_of(transactional_id text, number bigint) returns int language plpgsql immutable as $$
declare
    hash bigint := 0;
    letter text;
    code int;
begin
    if transactional_id is null then
        return number % 50;
    end if;
    foreach letter in array string_to_array(transactional_id, null) loop
        code := ascii(letter);
        if code >= 65536 then  -- two units: a surrogate pair
            hash := (hash * 31 + 55296 + ((code - 65536) >> 10)) & 4294967295;
            code := 56320 + (code & 1023);
        end if;
        hash := (hash * 31 + code) & 4294967295;
    end loop;
    return case when hash = 2147483648 then 0 else least(hash, 4294967296 - hash) % 50 end;
end $$;
