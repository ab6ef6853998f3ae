-- sort_parked(group, partition, member, call, log_start, moment, most, spans, …) moves records of a share partition between
-- its spans and share_parked. It parks delayed records. It makes parked records available when they are due, or when their
-- key is free again. With ordering=key, an available record waits while another member has its key.
--   foreign_keys   the keys of other members' records in flight; with ordering=key. A call below 0 is one of receive: it is
--                  a member by itself
--   is_met         whether it has moved or dropped any
-- The caller holds the share partition's lock, and writes its state in the same SQL transaction. Writes share_parked through
-- park_delayed, drop_removed, unpark_records, hold_back_keys.
create function msgtx.sort_parked(
    g msgtx.share_group, in_partition_id int, in_member_number bigint, in_call_number bigint, log_start bigint,
    moment timestamptz, most int, inout spans msgtx.share_span[], inout next_due timestamptz,
    inout waiting_keys bigint[], out foreign_keys bigint[], out is_met boolean
) language plpgsql volatile as $$
declare
    parked_at_once constant int := 200;  -- of what is parked and gone that a call drops
    before constant msgtx.share_span[] := spans;
    ready msgtx.share_span[];
    dropped int := 0;
begin
    foreign_keys := '{}';
    if spans <> '{}' then
        select d.spans, d.next_due into spans, next_due
        from msgtx.park_delayed(g.group_id, in_partition_id, g.ordering, moment, spans, next_due) d;
        if g.ordering = 'key' then
            select array(select distinct r.key_hash from msgtx.record_keys(in_partition_id, f.firsts, f.lasts) r)
            into foreign_keys
            from (select array_agg(s.first_offset) as firsts, array_agg(s.last_offset) as lasts
                  from unnest(spans) s
                  where s.status in ('acquired', 'pending') and (
                      s.member_number <> in_member_number or in_call_number < 0 and s.call_number <> in_call_number)) f;
        end if;
    end if;
    if g.ordering = 'key' and log_start > 0 then
        select d.dropped, waiting_keys || d.key_hashes into dropped, waiting_keys
        from msgtx.drop_removed(g.group_id, in_partition_id, parked_at_once, false) d;
    end if;
    if next_due <= moment or waiting_keys <> '{}' then
        select u.next_due, u.waiting_keys, u.spans into next_due, waiting_keys, ready
        from msgtx.unpark_records(
            g.group_id, in_partition_id, log_start, moment, most, foreign_keys, next_due, waiting_keys) u;
        spans := array(select s from unnest(spans || ready) s order by s.first_offset);
    end if;
    if g.ordering = 'key' and spans <> '{}' then
        select h.spans, h.waiting_keys into spans, waiting_keys
        from msgtx.hold_back_keys(g.group_id, in_partition_id, foreign_keys, spans, waiting_keys) h;
    end if;
    is_met := dropped > 0 or spans is distinct from before;
end $$;
