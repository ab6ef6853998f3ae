-- find_records(partition, before, …) goes through a partition from its end to its beginning, in steps. → the records of this
-- step that fit, the last one first, and next_before for the next step, null after the last one; at least one row, with
-- nulls if none fits. They may be open or aborted. All that is given must fit:
--   since_ms   how long ago a record may have been stored   at_offset   this record alone
--   in_json    path.of.names=text, in a value that is JSON  in_header   name=content
--   in_words   the record's key, or words in a text of a value that is JSON, or a number there
--   outcome    committed, aborted, prepared (sealed, undecided) or open
-- To search in contents takes the right to consume. Without it, keys, values and headers are null. A row is read without its
-- values as long as none is asked for.
-- Reads topic, partition, record_batch, producer, transaction tables.
-- right: consume, observe
-- null: next_before, record_offset, record_timestamp, stored_at, record_key, record_value, header_keys, header_values
-- null: header_values[], producer_id, producer_epoch, transaction_number, transactional_id, outcome, decided_at, deliver_at
-- plan: look-ups, nested loops
create function msgtx.find_records(
    in_partition_id int, before bigint, since_ms bigint, at_offset bigint, in_key bytea, in_json text, in_header text,
    most int, in_words text default null)
returns table (
    next_before bigint, record_offset bigint, record_timestamp bigint, stored_at timestamptz, record_key bytea,
    record_value bytea, header_keys text[], header_values bytea[], producer_id bigint, producer_epoch int,
    transaction_number bigint, transactional_id text, outcome text, decided_at timestamptz, deliver_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    rows_at_once constant int := case when at_offset is null then 500 else 1 end;
    bytes_at_once constant bigint := 16777216;  -- some tenths of a second, where values are searched
    json_path constant text[] := string_to_array(split_part(in_json, '=', 1), '.');
    json_text constant text := substr(in_json, strpos(in_json, '=') + 1);
    -- JSON may write other letters, and a large number, in several ways; a text like this is in it as it is.
    needle constant bytea := case when json_text ~ '^[a-zA-Z0-9_ .:@,-]+$'
            and (json_text ~ '^[0-9]{1,6}$' or json_text !~ '^[0-9.eE+-]+$')
        then convert_to(json_text, 'UTF8') end;
    -- The longest part of the words that JSON writes in one way.
    words_needle constant bytea := convert_to((
        select m[1] from regexp_matches(in_words, '[a-zA-Z0-9 _.:@,-]+', 'g') m order by length(m[1]) desc limit 1), 'UTF8');
    header_name constant text := split_part(in_header, '=', 1);
    header_content constant bytea := convert_to(substr(in_header, strpos(in_header, '=') + 1), 'UTF8');
    longest_ms constant bigint := 100000000000000;  -- some 3,000 years
    since constant timestamptz := msgtx.clock() - least(since_ms, longest_ms) * interval '1 ms';
    shows boolean := true;
    ignored boolean;
begin
    if strpos(in_json, '=') < 2 or strpos(in_header, '=') < 2 then
        raise exception using errcode = 'MX042', message = format(
            'a search in JSON is path.of.names=text, one in headers name=content, not %L', coalesce(in_json, in_header)),
            detail = jsonb_build_object('name', case when strpos(in_json, '=') < 2 then 'json' else 'header' end);
    end if;
    if not msgtx.acts_for_owner() then
        ignored := msgtx.require_rights(
            case when in_key is null and concat(in_json, in_header, in_words) = '' then '{consume,observe}'::text[]
                else '{consume}' end, array[in_partition_id]);
        shows := msgtx.shows_records(in_partition_id);
    end if;
    return query
    with chunk as materialized (
        select b.*
        from (
            select b.*, sum(b.byte_size) over (order by b.base_offset desc) - b.byte_size as bytes_behind
            from (
                select b.* from msgtx.record_batch b
                where b.partition_id = in_partition_id and b.base_offset < before
                order by b.base_offset desc limit rows_at_once) b) b
        where b.bytes_behind < bytes_at_once),
    fitting as (
        select c.*, u.ordinal, u.key, u.record_timestamp, u.at, u.header_count, u.headers_before
        from chunk c
        cross join lateral (
            select r.*, c.base_offset + coalesce(c.offset_deltas[r.ordinal], r.ordinal - 1) as at,
                   case when r.header_count > 0 then coalesce((
                       select sum(n) from unnest(c.header_counts[:r.ordinal - 1]) n), 0)::int end as headers_before
            from unnest(c.keys, case when in_json is not null or in_words is not null then c."values" end, c.timestamps,
                        c.header_counts, array_fill(null::int, array[c.record_count]))
                with ordinality r(key, value, record_timestamp, header_count, filler, ordinal)
            where (in_key is null or r.key = in_key)
              and case when in_json is null then true
                  when needle is not null and position(needle in r.value) = 0 then false
                  else msgtx.value_json(r.value) #>> json_path = json_text end
              and case when in_words is null or r.key = convert_to(in_words, 'UTF8') then true
                  when words_needle is not null and position(words_needle in r.value) = 0 then false
                  else msgtx.value_has_words(r.value, in_words) end) u
        where (since is null or c.appended_at >= since)
          and u.at >= (select p.log_start_offset from msgtx.partition p where p.partition_id = in_partition_id)
          and u.at < before and (at_offset is null or u.at = at_offset)
          and (in_header is null or u.header_count > 0 and exists (
              select from unnest(c.header_keys[u.headers_before + 1:u.headers_before + u.header_count],
                                 c.header_values[u.headers_before + 1:u.headers_before + u.header_count]) h(name, content)
              where h.name = header_name and h.content = header_content))
        order by u.at desc limit most)
    select s.next_before, f.at, coalesce(f.record_timestamp, f.max_timestamp), f.appended_at,
           case when shows then f.key end, case when shows then f."values"[f.ordinal] end,
           case when shows then h.names end, case when shows then h.contents end,
           f.producer_id, f.producer_epoch, f.transaction_number, w.transactional_id,
           case when f.transaction_number is null and f.at is not null or o.is_committed then 'committed'
               when d.outcome is not null or o.is_settled then 'aborted'
               when l.kind is not null then 'prepared'
               when f.at is not null then 'open' end,
           d.decided_at, (
               select msgtx.delivery_time(c.content) from unnest(h.names, h.contents) with ordinality c(name, content, place)
               where c.name = 'msgtx.deliver-at' order by c.place desc limit 1)
    from (
        select case when at_offset is null and (since is null or min(c.appended_at) >= since) then min(c.base_offset) end
            as next_before
        from chunk c) s
    left join fitting f on true
    left join lateral (
        select f.header_keys[f.headers_before + 1:f.headers_before + f.header_count] as names,
               f.header_values[f.headers_before + 1:f.headers_before + f.header_count] as contents) h on f.header_count > 0
    left join lateral msgtx.decision_of(f.producer_id, f.producer_epoch, f.transaction_number) d on true
    left join lateral msgtx.seal_of(f.producer_id, f.producer_epoch, f.transaction_number) l on true
    left join lateral (
        select msgtx.is_committed(
                   f.partition_id, f.base_offset, f.producer_id, f.producer_epoch, f.transaction_number) as is_committed,
               f.at < (select n.stable_floor from msgtx.floor_of(f.partition_id) n) as is_settled) o
        on f.transaction_number is not null
    left join lateral (
        select p.transactional_id from msgtx.producer p
        where p.producer_id = f.producer_id and (
            msgtx.topics_of_caller('{observe}') is null or msgtx.may_use('transactional_id', p.transactional_id))
        limit 1) w on true
    order by f.at desc;
end $$;
