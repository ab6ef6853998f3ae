-- cut(topics) → a consistent cut of these topics (names, separated by commas), now, as text: for each partition the end
-- below which it has all of a transaction or nothing (consistent_cut, I15). Overdue transactions are aborted first, where
-- the caller may write. The text is that of Python's `Snapshot`: INCARNATION orders:0=42@7,1=17@8 invoices:0=9@3, each end
-- with its partition's id. Raises UnknownTopicOrPartition.
-- Reads installation, topic, partition, and what consistent_cut and expire_holders do.
-- right: consume
-- plan: look-ups
create function msgtx.cut(topics text) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    names constant text[] := regexp_split_to_array(trim(coalesce(topics, '')), '\s*,\s*');
    asked int[];
    absent text;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner()
        or (select bool_and(msgtx.require_right_on_topic('consume', u)) from unnest(names) u);
    select u into absent from unnest(names) u where not exists (select from msgtx.topic t where t.name = u) limit 1;
    if found then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', quote_nullable(absent)),
            detail = jsonb_build_object('topic', absent);
    end if;
    asked := array(
        select p.partition_id from msgtx.topic t
        join msgtx.partition p on p.topic_id = t.topic_id where t.name = any(names));
    perform msgtx.expire_holders(asked);
    return (
        select concat_ws(' ', (select i.incarnation from msgtx.installation i),
                         string_agg(c.name || ':' || c.ends, ' ' order by c.name collate "C"))
        from (
            select t.name, string_agg(format('%s=%s@%s', p.partition_index, s.end_offset, s.partition_id), ','
                                      order by p.partition_index) as ends
            from msgtx.consistent_cut(asked) s
            join msgtx.partition p on p.partition_id = s.partition_id
            join msgtx.topic t on t.topic_id = p.topic_id
            group by t.name) c);
end $$;
