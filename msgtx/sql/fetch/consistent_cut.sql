-- consistent_cut(partitions, positions) → per partition, ascending, its log start and the greatest end such that no
-- committed transaction has records on both sides, over all these partitions (I15); nothing is above a last stable offset.
-- held_…: the transaction that lowered the end below the last stable offset, null if none did. Records below a log start do
-- not count. Cuts of the same partitions only move forward: consistent ends are closed under maximum.
--   positions   the positions of a reader, by partition; null: at the log start. Records below were read and do not count
--               either: an end is lowered to a position at most, and the rest of a transaction there is not divided. This
--               is a cut for that reader alone, unless the positions are an earlier cut: these change nothing
-- STABLE: all of it is one snapshot. Work: the rows between the cut and the log ends, each looked at once, without its
-- arrays, in rounds, each over the rows that the round before uncovered. There is no other limit: where transactions
-- overlap without a pause, each end behind the first one divides one of them, and a lower cut than the greatest would move
-- back. Reads record_batch, transaction, transaction_decision, transaction_marker and the tables of fetch_batches.
-- right: consume, observe
-- null: held_producer_id, held_epoch, held_number
-- plan: look-ups, nested loops
create function msgtx.consistent_cut(partition_ids int[], positions bigint[] default null)
returns table (
    partition_id int, log_start_offset bigint, end_offset bigint,
    held_producer_id bigint, held_epoch int, held_number bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    asked int[];
    reached bigint[];
    ids int[];  -- ascending, so that a partition's place in all these arrays is found without going through them
    starts bigint[];
    lowest bigint[];  -- records below do not count; maybe above an end, which is not lowered then
    ends bigint[];
    producer_ids bigint[];
    epochs int[];
    numbers bigint[];
    places int[];  -- of the partitions that were lowered in the last round
    looked_from bigint[];  -- rows from here on were looked at, by those
    found record;
    ignored boolean;
begin
    ignored := msgtx.acts_for_owner() or msgtx.require_rights('{consume,observe}', partition_ids);
    select array_agg(a.id order by a.id), array_agg(a.position order by a.id) into asked, reached
    from (select u.id, max(u.position) as position
          from unnest(partition_ids, positions) u(id, position) where u.id is not null group by u.id) a;
    if asked is null then
        return;
    end if;
    select array_agg(l.partition_id order by l.partition_id), array_agg(l.log_start_offset order by l.partition_id),
           array_agg(l.last_stable_offset order by l.partition_id), array_agg(l.log_end_offset order by l.partition_id),
           array_agg(greatest(l.log_start_offset, reached[width_bucket(l.partition_id, asked)]) order by l.partition_id)
    into ids, starts, ends, looked_from, lowest
    from msgtx.log_ends(asked, 'read_committed') l;
    if ids is null then
        return;
    end if;
    producer_ids := array_fill(null::bigint, array[cardinality(ids)]);
    epochs := array_fill(null::int, array[cardinality(ids)]);
    numbers := producer_ids;
    places := array(select generate_series(1, cardinality(ids)));
    loop
        with place as materialized (
            select ids[u.at] as id, ends[u.at] as upto, u.looked_from from unnest(places, looked_from) u(at, looked_from)
            where ends[u.at] < u.looked_from),
        above as materialized (
            select distinct b.producer_id, b.producer_epoch, b.transaction_number
            from place p
            cross join lateral (
                select r.producer_id, r.producer_epoch, r.transaction_number from msgtx.record_batch r
                where r.partition_id = p.id and r.base_offset >= p.upto and r.base_offset < p.looked_from
                union all
                select w.producer_id, w.producer_epoch, w.transaction_number from (
                    select r.last_offset, r.producer_id, r.producer_epoch, r.transaction_number from msgtx.record_batch r
                    where r.partition_id = p.id and r.base_offset < p.upto order by r.base_offset desc limit 1) w
                where w.last_offset >= p.upto) b
            where b.transaction_number is not null),
        span as (
            select a.*, s.id, s.first_offset, s.last_offset
            from above a
            cross join lateral msgtx.spans_of(a.producer_id, a.producer_epoch, a.transaction_number, ids) s),
        crossing as (
            select distinct on (s.at) s.at, ends[s.at] as looked_from, greatest(s.first_offset, lowest[s.at]) as upto,
                   s.producer_id, s.producer_epoch, s.transaction_number
            from (select span.*, width_bucket(span.id, ids) as at from span offset 0) s
            where ids[s.at] = s.id and s.first_offset < ends[s.at] and s.last_offset >= lowest[s.at]
                and ends[s.at] > lowest[s.at]
            order by s.at, s.first_offset)
        select array_agg(c.at) as places, array_agg(c.looked_from) as looked_from, array_agg(c.upto) as ends,
               array_agg(c.producer_id) as producer_ids, array_agg(c.producer_epoch) as epochs,
               array_agg(c.transaction_number) as numbers
        into found from crossing c;
        exit when found.places is null;
        places := found.places;
        looked_from := found.looked_from;
        for at in 1 .. cardinality(places) loop
            ends[places[at]] := found.ends[at];
            producer_ids[places[at]] := found.producer_ids[at];
            epochs[places[at]] := found.epochs[at];
            numbers[places[at]] := found.numbers[at];
        end loop;
    end loop;
    return query
    select r.* from unnest(ids, starts, ends, producer_ids, epochs, numbers) r(a, b, c, d, e, f);
end $$;
