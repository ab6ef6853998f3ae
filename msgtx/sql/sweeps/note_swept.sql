-- note_swept(kind, key…, was, below) notes the number below which no superseded row of a key is left, in place of `was`, the
-- answer of swept_below. below null: the key has no rows, and is forgotten.
--   kind   state, call: of share groups; heartbeat, floor, offset
-- Passes by rows that are locked. Writes and deletes from swept.
create function msgtx.note_swept(in_kind text, in_key_1 bigint, in_key_2 bigint, was bigint, now_below bigint)
returns boolean language plpgsql volatile as $$
begin
    if now_below is null then
        return msgtx.forget_swept(in_kind, in_key_1, in_key_2);
    elsif now_below <= was then
        return false;
    end if;
    insert into msgtx.swept (kind, key_1, key_2, below) values (in_kind, in_key_1, in_key_2, now_below)
        on conflict do nothing;
    delete from msgtx.swept o where o.ctid = any(array(
        select s.ctid from msgtx.swept s
        where s.kind = in_kind and s.key_1 = in_key_1 and s.key_2 = in_key_2 and s.below <= was for update skip locked));
    return true;
end $$;
