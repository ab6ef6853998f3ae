-- save_snapshot(name, snapshot, replace) keeps the text of a snapshot under a name; error and detail say why not:
--   SnapshotExists       the name holds another one, and it is not to be replaced: the same one again changes nothing
--   IncarnationChanged   it is of another incarnation than the database, so it could never be read
--   InvalidRequest       the name is not made of 1 to 249 of a-z A-Z 0-9 . _ -; or the snapshot is longer than any is
-- Raises 42501 if another role has saved the one to be replaced, and the caller does not inherit that role's rights. Reading
-- it takes no right but to consume. Two at once: the second one waits, and is refused.
-- Writes named_snapshot. Flushed.
-- right: consume
-- null: taken_at
create function msgtx.save_snapshot(
    in_name text, in_snapshot text, in_replace boolean, out error text, out detail text, out taken_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    most_characters constant int := 16777216;  -- of half a million partitions
    known record;
    ignored boolean := msgtx.refuse_stale_snapshot();
begin
    if in_name is null or in_name !~ '^[a-zA-Z0-9._-]{1,249}$' then
        error := 'InvalidRequest: name';
        detail := format('the name %s is not allowed for a snapshot: use 1 to 249 of a-z A-Z 0-9 . _ -',
                         quote_nullable(in_name));
        return;
    end if;
    if split_part(in_snapshot, ' ', 1) is distinct from (select i.incarnation::text from msgtx.installation i) then
        error := 'IncarnationChanged';
        detail := format('the snapshot is of incarnation %s, the database has %s', split_part(in_snapshot, ' ', 1),
                         (select i.incarnation from msgtx.installation i));
        return;
    end if;
    if length(in_snapshot) > most_characters then
        error := 'InvalidRequest: size';
        detail := format('snapshot %s has %s characters; at most %s are stored', in_name, length(in_snapshot),
            most_characters);
        return;
    end if;
    ignored := msgtx.flush_at_commit();
    insert into msgtx.named_snapshot as s (name, snapshot, taken_at, role_name)
    values (in_name, in_snapshot, msgtx.clock(), msgtx.caller())
    on conflict (name) do update set snapshot = excluded.snapshot, taken_at = excluded.taken_at
        where in_replace and s.snapshot <> excluded.snapshot and msgtx.acts_for_role(s.role_name)
    returning s.taken_at into taken_at;
    if taken_at is null then
        select s.snapshot, s.taken_at, s.role_name into known from msgtx.named_snapshot s where s.name = in_name;
        taken_at := known.taken_at;
        if known.snapshot is distinct from in_snapshot then
            if in_replace then
                ignored := msgtx.require_own_snapshot(in_name, known.role_name);
            end if;
            error := 'SnapshotExists';
            detail := format('there is a snapshot %s, of %s: it is replaced only if that is asked for', in_name,
                             to_char(taken_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
            taken_at := null;
        end if;
    end if;
end $$;
