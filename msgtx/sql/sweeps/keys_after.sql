-- keys_after(kind, after…, most) → the next keys behind this one, ascending: see next_key.
create function msgtx.keys_after(kind text, after_1 bigint, after_2 bigint, most int)
returns table (key_1 bigint, key_2 bigint) language sql stable as $$
    with recursive keys(key_1, key_2) as (
        (select n.key_1, n.key_2 from msgtx.next_key(keys_after.kind, after_1, after_2) n)
        union all
        select n.key_1, n.key_2 from keys k cross join lateral msgtx.next_key(keys_after.kind, k.key_1, k.key_2) n)
    select k.key_1, k.key_2 from keys k limit most
$$;
