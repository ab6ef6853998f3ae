-- measure_activity(topic, pieces, piece_ms) → what was stored and decided in each of the last `pieces` pieces of time, the
-- oldest first; the last one is under way. Of a topic, null: of all that the caller may consume or observe.
--   records     offsets that were given out, whatever became of them; null: retention has removed what could tell
--   removed     partitions whose log does not reach back to the piece's beginning: they do not count in records
--   committed, aborted   transactions with records, by the time of the decision; null: their history is over
--   estimated   some partitions stand for all, or some moments for the whole piece
-- Its cost is bounded (stored_in_pieces, decided_in_pieces). Reads topic, setting and, through these, partition,
-- record_batch, transaction_decision.
-- right: consume, observe
-- null: records, committed, aborted
-- plan: look-ups
create function msgtx.measure_activity(in_topic text default null, pieces int default 60, piece_ms bigint default 60000)
returns table (
    piece_start timestamptz, piece_end timestamptz, records bigint, removed bigint, committed bigint, aborted bigint,
    estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment constant timestamptz := msgtx.clock();
    length constant interval := piece_ms * interval '1 ms';
    begins constant timestamptz := 'epoch'::timestamptz
        + (floor(extract(epoch from moment) * 1000 / piece_ms)::bigint - pieces + 1) * length;
    remembered constant timestamptz := moment - interval '1 ms' * greatest(
        msgtx.setting_value('transaction_history_ms'), msgtx.setting_value('transactional_id_expiration_ms'),
        msgtx.setting_value('producer_id_expiration_ms'));  -- as purge_transactions does
    visible constant int[] := msgtx.topics_of_caller('{consume,observe}');
    topics constant int[] := case when in_topic is null then visible else array(
        select t.topic_id from msgtx.topic t where t.name = in_topic) end;
    ignored boolean;
begin
    ignored := in_topic is null or msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', array(
        select p.partition_id from msgtx.partition p where p.topic_id = any(topics) and p.partition_index = 0));
    return query
    select i.first, least(i.first + length, moment),
           case when s.removed = 0 then s.records else nullif(s.records, 0) end, s.removed,
           case when i.first >= remembered then d.committed end, case when i.first >= remembered then d.aborted end,
           s.estimated or d.estimated
    from msgtx.stored_in_pieces(topics, begins, pieces, piece_ms) s
    join msgtx.decided_in_pieces(topics, begins, pieces, piece_ms) d on d.at = s.at
    cross join lateral (select begins + s.at * length as first) i
    order by s.at;
end $$;
