-- staged_at_commit is the trigger by which a SQL transaction writes at COMMIT what it has staged.
create constraint trigger staged_at_commit after insert on msgtx.staged_commit
deferrable initially deferred for each row when (new.round is not null) execute function msgtx.append_staged_once();
