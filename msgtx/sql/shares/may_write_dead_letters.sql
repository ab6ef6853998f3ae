-- may_write_dead_letters(letters) → whether the caller may let a share group write its dead letters to this topic. A
-- member chooses the group's name, and with it the topic. So it needs a right on that topic: to produce to it, or to
-- make it while there is none. Once a member that has it has joined, or the group was configured, all members may
-- (share_group.writes_dead_letters). Reads topic, role_right.
create function msgtx.may_write_dead_letters(letters text) returns boolean language plpgsql stable as $$
declare
    patterns text[];
begin
    patterns := msgtx.patterns_of_caller(case when exists (select from msgtx.topic t where t.name = letters)
                                              then '{produce,admin}' else '{admin}'::text[] end);
    return patterns is null or letters like any (patterns);
end $$;
