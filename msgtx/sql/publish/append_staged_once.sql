-- append_staged_once() appends everything staged in this SQL transaction, after the user's own deferred triggers and
-- constraints: one of them may wait for another session's row, and must not wait while partitions are locked. PostgreSQL
-- fires deferred triggers in rounds; triggers that a round queues fire in the next one. So this queues itself twice: behind
-- the triggers pending at COMMIT, and behind the triggers queued by these. Both may have staged more. Under `set
-- constraints … immediate` all of it happens at once. It looks for its own row by the whole key, so that the plan does not
-- depend on the table's size. A row that hold_commit holds refuses the COMMIT. Locks groups, partitions. Writes
-- staged_commit.
-- plan: look-ups
create function msgtx.append_staged_once() returns trigger language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp as $$
declare
    ignored boolean;
begin
    if new.round < 0 and exists (
            select from msgtx.staged_commit c
            where c.staged_by = new.staged_by and c.staged_number = new.staged_number and c.round < 0) then
        raise exception using errcode = 'MX000', column = 'IllegalState', message =
            'the block that handles records is open, or has failed: leave it before the commit, or roll back',
            detail = jsonb_build_object('reason', 'block');
    end if;
    -- A row that is gone was appended with another one.
    if new.round < 2 then
        insert into msgtx.staged_commit (round)
        select greatest(new.round, 0) + 1 from msgtx.staged_commit c
        where c.staged_by = new.staged_by and c.staged_number = new.staged_number;
    elsif exists (select from msgtx.staged_commit c
                  where c.staged_by = new.staged_by and c.staged_number = new.staged_number) then
        ignored := msgtx.limit_session();
        ignored := msgtx.append_staged(new.staged_by);
    end if;
    return null;
end $$;
