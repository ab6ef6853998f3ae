-- make_share_group(group, letters) makes a share group with the usual settings, whose dead letters are to go to topic
-- letters; → its id. The caller holds the group's lock. Writes consumer_group, share_group and, through begin_dead_letters,
-- share_state.
create function msgtx.make_share_group(group_name text, letters text) returns int language plpgsql volatile as $$
declare
    made_id int;
    ignored boolean;
begin
    insert into msgtx.consumer_group (name) values (group_name) returning group_id into made_id;
    insert into msgtx.share_group (group_id) values (made_id);
    ignored := msgtx.begin_dead_letters(made_id, letters);
    return made_id;
end $$;
