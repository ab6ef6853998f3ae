-- staged_at_commit is the trigger that writes the staged rows of a SQL transaction at COMMIT.
create constraint trigger staged_at_commit after insert on msgtx.staged_commit
deferrable initially deferred for each row when (new.round is not null) execute function msgtx.append_staged_once();
