-- why_no_dead_letters(group, letters, topics) → reason and sentence if a share group that reads these topics cannot have
-- this topic for its dead letters, else null. If it read them, a record that is rejected would come back for ever; a
-- compacted topic keeps one dead letter for each key. Another group may read them.
-- Locks the topic's row (share): so it cannot become compacted. Reads topic.
create function msgtx.why_no_dead_letters(group_name text, letters text, topics text[]) returns text[]
language plpgsql volatile as $$
begin
    return case
        when letters = any (topics) then array['own letters', format(
            'share group %s: its dead letters go to topic %s, so the group cannot read it; read it with another group',
                group_name, letters)]
        when (select t.cleanup_policy from msgtx.topic t where t.name = letters for share) <> 'delete' then array[
            'compacted', format('share group %s: dead_letter_topic %s is compacted: it would keep one dead letter for each'
                ' key', group_name, letters)] end;
end $$;
