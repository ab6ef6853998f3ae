-- find_names(text, most) → things with this name, then things whose names begin with the text: at most `most` of each
-- kind, in order of names.
--   kind   transactional_id, topic, group, share_group, snapshot; producer, where the text is its id
--   told   a few words about it
-- A caller sees here what it sees in the views of transactions, topics and groups, and in saved_snapshots. At most 200
-- transactional ids are looked at, none for an empty text. Reads producer, topic, partition, and the tables of these views
-- and of saved_snapshots.
-- right: any
-- null: told
-- plan: look-ups
create function msgtx.find_names(in_text text, most int)
returns table (kind text, name text, told text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    ids_at_most constant int := 200;
    visible constant int[] := msgtx.topics_of_caller('{produce,consume,observe}');
begin
    return query
    select f.kind, f.name, f.told
    from (
        (select 1, 'transactional_id', v.transactional_id, format('producer %s, %s', v.producer_id, v.state)
         from (
             select p.producer_id from msgtx.producer p
             where in_text <> '' and starts_with(p.transactional_id, in_text)
             order by p.transactional_id <> in_text, p.transactional_id limit ids_at_most) p
         cross join lateral (
             select v.* from msgtx.transactions v where v.producer_id = p.producer_id limit 1) v
         where v.transactional_id is not null limit most)
        union all
        (select 2, 'topic', t.name, (
             select format('%s partition%s', count(*), case when count(*) <> 1 then 's' end)
             from msgtx.partition p where p.topic_id = t.topic_id)
         from msgtx.topic t
         where starts_with(t.name, in_text) and coalesce(t.topic_id = any(visible), true)
         order by t.name <> in_text, t.name limit most)
        union all
        (select 3, 'group', v.name, format('generation %s', v.generation) from msgtx.consumer_groups v
         where starts_with(v.name, in_text) order by v.name <> in_text, v.name limit most)
        union all
        (select 4, 'share_group', v.name, 'share group' from msgtx.share_groups v
         where starts_with(v.name, in_text) order by v.name <> in_text, v.name limit most)
        union all
        (select 5, 'snapshot', s.name, 'saved at ' || msgtx.time_text(s.taken_at) from msgtx.saved_snapshots() s
         where starts_with(s.name, in_text) order by s.name <> in_text, s.name limit most)
        union all
        (select 6, 'producer', v.producer_id::text, concat_ws(', ', v.transactional_id, v.state)
         from msgtx.transactions v
         where in_text ~ '^[0-9]{1,18}$'
           and v.producer_id = case when in_text ~ '^[0-9]{1,18}$' then in_text::bigint end)
        ) f(place, kind, name, told)
    order by f.name <> in_text, f.place, f.name;
end $$;
