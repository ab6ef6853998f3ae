-- unpark_records(group, partition, log_start, moment, most, foreign_keys, next_due, waiting_keys) takes out of share_parked
-- the records to be delivered now, at most so many rows: due ones, and those with a key that no other member has any more;
-- → spans, ascending by offset.
--   foreign_keys   which other members have in flight
--   waiting_keys   for which something waits, since a member has the key, or had it; with ordering=key
-- Records that retention has removed are left out, and hold no key. The caller holds the share partition's lock, and writes
-- its state in the same SQL transaction. Deletes from share_parked.
create function msgtx.unpark_records(
    in_group_id int, in_partition_id int, log_start bigint, moment timestamptz, most int, foreign_keys bigint[],
    inout next_due timestamptz, inout waiting_keys bigint[], out spans msgtx.share_span[]
) language plpgsql volatile as $$
declare
    waiting bigint;
    still_waiting bigint[] := '{}';
    taken int;
    found_spans msgtx.share_span[];
    found_keys bigint[];
begin
    spans := '{}';
    if next_due <= moment and most > 0 then
        -- From the first due time on: deleted rows lie before it, however long they stay in the index.
        with gone as (
            delete from msgtx.share_parked o where o.ctid = any(array(
                select p.ctid from msgtx.share_parked p
                where p.group_id = in_group_id and p.partition_id = in_partition_id
                  and p.due_at between next_due and moment
                order by p.due_at, p.first_offset limit most))
            returning o.*)
        select array_agg(row(greatest(g.first_offset, log_start), g.last_offset, 'available', g.delivery_count,
                             g.member_number, null, null, null, null, null, null, g.reason)::msgtx.share_span)
                   filter (where g.last_offset >= log_start),
               array_agg(distinct g.key_hash) filter (where g.key_hash is not null)
        into spans, found_keys
        from gone g;
        spans := coalesce(spans, '{}');
        waiting_keys := waiting_keys || array(select k from unnest(found_keys) k where k <> all (waiting_keys));
        next_due := (
            select p.due_at from msgtx.share_parked p
            where p.group_id = in_group_id and p.partition_id = in_partition_id and p.due_at >= next_due
            order by p.due_at limit 1);
    end if;
    foreach waiting in array waiting_keys loop
        if waiting = any (foreign_keys) or cardinality(spans) >= most then
            still_waiting := still_waiting || waiting;
            continue;
        end if;
        with gone as (
            delete from msgtx.share_parked o where o.ctid = any(array(
                select p.ctid from msgtx.share_parked p
                where p.group_id = in_group_id and p.partition_id = in_partition_id and p.key_hash = waiting
                    and p.due_at is null
                  and p.first_offset < coalesce((
                      select d.first_offset from msgtx.share_parked d
                      where d.group_id = in_group_id and d.partition_id = in_partition_id and d.key_hash = waiting
                        and d.due_at is not null and msgtx.is_stored(in_partition_id, d.first_offset, d.last_offset)
                      order by d.first_offset limit 1), 9223372036854775807)
                order by p.first_offset limit most - cardinality(spans)))
            returning o.*)
        select array_agg(row(greatest(g.first_offset, log_start), g.last_offset, 'available', g.delivery_count,
                             g.member_number, null, null, null, null, null, null, g.reason)::msgtx.share_span)
                   filter (where g.last_offset >= log_start),
               count(*)
        into found_spans, taken
        from gone g;
        if taken > 0 then
            spans := spans || coalesce(found_spans, '{}');
            still_waiting := still_waiting || waiting;  -- a call that finds nothing more forgets the key
        end if;
    end loop;
    waiting_keys := still_waiting;
    spans := array(select s from unnest(spans) s order by s.first_offset);
end $$;
