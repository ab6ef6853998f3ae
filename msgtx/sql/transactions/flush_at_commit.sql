-- flush_at_commit() raises synchronous_commit from off to on for this SQL transaction and leaves every other setting
-- alone: an acknowledged decision survives a crash (I9). Nothing in the database ever weakens it.
create function msgtx.flush_at_commit() returns boolean language plpgsql volatile as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return true;
end $$;
