-- stage_commit() makes trigger staged_at_commit fire once in this SQL transaction, however often it is called. Called
-- after the staging: under `set constraints … immediate` the trigger fires here. Its settings are the caller's: each
-- SET clause costs 5 µs at each call. Writes staged_commit.
create function msgtx.stage_commit() returns boolean language plpgsql volatile as $$
begin
    insert into msgtx.staged_commit (round)
    select 0 where not exists (
        select from msgtx.staged_commit c where c.staged_by = pg_current_xact_id() and c.round is not null);
    return true;
end $$;
