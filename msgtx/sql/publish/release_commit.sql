-- release_commit(number) allows the COMMIT that hold_commit holds. Returns the SQL transaction whose end decides about its
-- offsets, for pg_xact_status: the subtransaction of a savepoint that was begun since then, else the whole. Null: what was
-- held is gone, because the SQL transaction, or a savepoint, was rolled back. Writes staged_commit.
-- right: consume
-- null: value
-- plan: look-ups
create function msgtx.release_commit(number bigint) returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
    whole constant bigint := pg_current_xact_id()::text::bigint;
    part bigint;
begin
    update msgtx.staged_commit c set round = 0
    where c.staged_by = pg_current_xact_id() and c.staged_number = release_commit.number
    returning c.xmin::text::bigint into part;
    -- The row has the lower half of the number. A subtransaction has a later one than the whole.
    return (whole & -4294967296) + part + case when part < (whole & 4294967295) then 4294967296 else 0 end;
end $$;
