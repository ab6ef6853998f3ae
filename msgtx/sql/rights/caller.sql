-- caller() → the role in whose name a call is made: the one of SET ROLE, else the session's. Functions with their owner's
-- rights change neither.
create function msgtx.caller() returns name language sql stable
return coalesce(nullif(current_setting('role'), 'none')::name, session_user);
