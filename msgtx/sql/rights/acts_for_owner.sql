-- acts_for_owner() → whether a call is made by the owner of the running function: one cheap comparison, so that rights
-- cost owners nothing. False is also possible for a role that may do everything (patterns_of_caller knows). Asked in
-- functions with their owner's rights only: elsewhere the caller is the current user. Plain SQL: it becomes part of its
-- caller.
create function msgtx.acts_for_owner() returns boolean language sql stable
return session_user = current_user and current_setting('role') = 'none';
