-- forget_swept(kind, key…) forgets the note of a key that is gone (note_swept); key_2 null: of all keys with this
-- key_1.
-- Deletes from swept.
create function msgtx.forget_swept(in_kind text, in_key_1 bigint, in_key_2 bigint) returns boolean language plpgsql volatile
as $$
begin
    delete from msgtx.swept s where s.kind = in_kind and s.key_1 = in_key_1 and (in_key_2 is null or s.key_2 = in_key_2);
    return true;
end $$;
