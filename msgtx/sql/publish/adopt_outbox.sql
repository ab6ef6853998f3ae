-- adopt_outbox(outbox, topic, …) publishes the rows of an outbox table: a trigger calls publish for each row that is
-- inserted, so that a record is there exactly if its row was committed (I6), also if the row is deleted at once.
--   topic          of all rows; null: that which topic_column names
--   …_column       as in Debezium's outbox by default; the value is json, text or bytea; key and type may be null
--   event_source   header ce_source; null: the table's name
-- The headers are those of CloudEvents in binary mode: ce_specversion, ce_id, ce_type, ce_source, content-type. Adopted
-- again, the new arguments hold. It makes a function in the table's schema, and trigger msgtx_outbox, with the rights of the
-- caller, who owns the table. They name msgtx.publish only when they run, so an upgrade does not meet them.
-- right: produce
create function msgtx.adopt_outbox(
    outbox regclass, topic text default null, id_column name default 'id', key_column name default 'aggregateid',
    type_column name default 'type', value_column name default 'payload', topic_column name default 'aggregatetype',
    event_source text default null)
returns void language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    place record;
    wrong name;
    body text;
begin
    select n.nspname as schema, c.relname as name, (
               select a.atttypid from pg_attribute a where a.attrelid = outbox and a.attname = value_column) as value_type
    into place
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = outbox;
    select u.name into wrong
    from unnest(array[id_column, key_column, type_column, value_column, topic_column],
                array[true, key_column is not null, type_column is not null, true, topic is null]) u(name, is_needed)
    where u.is_needed and not exists (
        select from pg_attribute a where a.attrelid = outbox and a.attname = u.name and a.attnum > 0 and not a.attisdropped)
    limit 1;
    if found or outbox is null then
        raise exception using errcode = 'MX042', message = format(
            'msgtx.adopt_outbox: table %s has no column %s: name its columns of id, key, type, value, and topic', outbox,
            quote_nullable(wrong)),
            detail = jsonb_build_object('name', 'outbox', 'given', wrong);
    end if;
    body := format(
        'begin perform msgtx.publish(%s, %s, key => %s, headers => jsonb_strip_nulls(jsonb_build_object(''ce_specversion'', '
        '''1.0'', ''ce_id'', new.%I::text, ''ce_type'', %s, ''ce_source'', %L, ''content-type'', %L))); return null; end',
        case when topic is null then format('new.%I::text', topic_column) else quote_literal(topic) end,
        format(case when place.value_type = 'bytea'::regtype then 'value_bytes => new.%I' else 'value => new.%I::text' end,
               value_column),
        case when key_column is null then 'null' else format('new.%I::text', key_column) end, id_column,
        case when type_column is null then 'null' else format('new.%I::text', type_column) end,
        coalesce(event_source, place.schema || '.' || place.name),
        case when place.value_type in ('json'::regtype, 'jsonb'::regtype) then 'application/json' end);
    perform msgtx.release_outbox(outbox);
    execute format(
        'create function %1$I.%2$I() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as %3$L',
        place.schema, 'msgtx_outbox_' || outbox::oid, body);
    execute format(
        'create trigger msgtx_outbox after insert on %s for each row execute function %I.%I()', outbox, place.schema,
        'msgtx_outbox_' || outbox::oid);
end $$;
