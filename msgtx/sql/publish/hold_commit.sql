-- hold_commit(…) stages consumer offsets as commit_in_session does, and makes the COMMIT of this SQL transaction fail until
-- release_commit is called with the number that this returns: a COMMIT in between would have rows of some of the records,
-- and the offsets of all. For drivers that tell nobody before they commit. Raises ConfigError above READ COMMITTED.
-- Writes staged_commit.
-- right: consume
-- plan: look-ups
create function msgtx.hold_commit(
    group_names text[], offset_partitions int[], offsets bigint[], metadata text[], member_ids text[], generations int[],
    read_identities text[], instance_ids text[])
returns bigint language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    ignored boolean := msgtx.refuse_stale_snapshot() and msgtx.refuse_standby();
    number bigint;
begin
    -- Round -1: the trigger refuses the COMMIT.
    insert into msgtx.staged_commit (
        batches, group_names, offset_partitions, offsets, metadata, member_ids, generations, read_identities, instance_ids,
        round)
    values ('{}', group_names, offset_partitions, offsets, metadata, member_ids, generations, read_identities, instance_ids,
            -1)
    returning staged_number into number;
    return number;
end $$;
