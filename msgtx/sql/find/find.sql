-- find(topic, …) → the places of fitting records of a topic, the outcomes of their transactions, and the progress of each
-- group; the last stored ones first, also open and aborted ones. All that is given must fit (find_records).
--   json_field  path.of.names=text, in a value that is JSON      header   name=content
--   since       how long ago a record may have been stored; "offset" needs partition, and no since
--   groups, dead_letters   arrays of objects: the rows of groups_of_record and letters_of_record
-- To search in contents takes the right to consume. After 64 steps of find_records a warning says where the search ended.
-- Reads topic, partition and what the three functions do.
-- right: consume, observe
-- plan: look-ups
create function msgtx.find(
    topic text, key text default null, json_field text default null, header text default null, partition int default null,
    "offset" bigint default null, since interval default '1 day', max_records int default 10, key_bytes bytea default null
) returns setof msgtx.found_record language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    steps_at_most constant int := 64;
    visible constant int[] := msgtx.topics_of_caller('{produce,consume,observe}');
    found_topic constant int := (
        select t.topic_id from msgtx.topic t where t.name = topic and coalesce(t.topic_id = any(visible), true));
    since_ms constant bigint := case when "offset" is null then extract(epoch from since) * 1000 end;
    hits msgtx.found_record[] := '{}';
    ids int[] := '{}';
    steps int := 0;
    before bigint;
    fitting int;
    place record;
    step record;
begin
    if found_topic is null then
        raise exception using errcode = 'MX003', message = format('topic %s does not exist', quote_nullable(topic)),
            detail = jsonb_build_object('topic', topic);
    end if;
    if "offset" is not null and partition is null then
        raise exception using errcode = 'MX042', message = 'msgtx.find needs the partition of an offset',
            detail = jsonb_build_object('name', 'partition');
    end if;
    for place in
        select p.partition_id, p.partition_index from msgtx.partition p
        where p.topic_id = found_topic and coalesce(p.partition_index = partition, true) order by p.partition_index
    loop
        before := coalesce("offset" + 1, 9223372036854775807);
        fitting := 0;
        while before is not null and fitting < max_records loop
            if steps >= steps_at_most then
                raise warning 'the search ended in partition %, in front of offset %: narrow it, for example by since',
                    place.partition_index, before;
                exit;
            end if;
            steps := steps + 1;
            for step in
                select f.* from msgtx.find_records(
                    place.partition_id, before, since_ms, "offset", coalesce(key_bytes, convert_to(key, 'UTF8')), json_field,
                    header, max_records) f
            loop
                before := step.next_before;
                continue when step.record_offset is null;
                fitting := fitting + 1;
                ids := ids || place.partition_id;
                hits := hits || row(
                    topic, place.partition_index, step.record_offset,
                    'epoch'::timestamptz + step.record_timestamp * interval '1 ms', step.stored_at, step.record_key,
                    step.record_value, msgtx.header_object(step.header_keys, step.header_values), step.outcome,
                    step.transactional_id, step.producer_id, step.decided_at, step.deliver_at, null, null
                    )::msgtx.found_record;
            end loop;
        end loop;
    end loop;
    return query
    select h.topic, h.partition, h."offset", h."timestamp", h.stored_at, h.key, h.value, h.headers, h.outcome,
           h.transactional_id, h.producer_id, h.decided_at, h.deliver_at, (
               select coalesce(jsonb_agg(to_jsonb(g)), '[]') from msgtx.groups_of_record(h.id, h."offset") g), (
               select coalesce(jsonb_agg(to_jsonb(l)), '[]')
               from msgtx.letters_of_record(h.topic, h.partition, h."offset", h.stored_at) l)
    from (
        select u.*, ids[u.ordinality] as id from unnest(hits) with ordinality u
        order by u.stored_at desc, u.partition, u."offset" desc limit max_records) h
    order by h.stored_at desc, h.partition, h."offset" desc;
end $$;
