-- swept_below(kind, key…) → below which number no superseded row of a key is left, as sweeps have noted it (note_swept); -1:
-- nothing is noted. Removed rows stay in the index as long as any snapshot may see them: a search from the first row on
-- would pass all of them, each time, however few there are to remove.
-- Reads swept.
create function msgtx.swept_below(in_kind text, in_key_1 bigint, in_key_2 bigint) returns bigint language sql volatile as $$
    select coalesce((
        select s.below from msgtx.swept s
        where s.kind = in_kind and s.key_1 = in_key_1 and s.key_2 = in_key_2 order by s.below desc limit 1), -1)
$$;
