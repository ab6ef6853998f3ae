-- is_topic_name(name) → whether a topic may have this name, as the constraint of the table topic says, too; null for null.
create function msgtx.is_topic_name(name text) returns boolean language sql immutable as $$
    select name ~ '^[a-zA-Z0-9._-]{1,249}$' and name not in ('.', '..')
$$;
