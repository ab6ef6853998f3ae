-- staged_record_at_commit is the trigger that appends staged records when their SQL transaction commits.
create constraint trigger staged_record_at_commit after insert on msgtx.staged_record
deferrable initially deferred for each row execute function msgtx.append_staged_once();
