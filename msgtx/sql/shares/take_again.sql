-- take_again(group, partition, spans, …) takes records that are to be delivered again out of a share partition's spans, for
-- a member: at most `most`, of so many bytes. The more often a record was delivered, the fewer come with it.
--   acquired   the span of an acquisition by this member: all but offsets and delivery_count
--   is_first   the call has nothing yet: a record may be taken for its last delivery, which comes alone
--   most       how many may follow; with ordering=key nothing is delivered past what could not be taken.
create function msgtx.take_again(
    g msgtx.share_group, in_partition_id int, acquired msgtx.share_span, is_first boolean, max_records int,
    inout spans msgtx.share_span[], inout most int, inout bytes_left bigint, out taken msgtx.share_span[], out alone boolean
) language plpgsql volatile as $$
declare
    span msgtx.share_span;
    rest msgtx.share_span[] := '{}';
    at int := 1;
begin
    taken := '{}';
    alone := false;
    foreach span in array array(
        select s from unnest(spans) s where s.status = 'available' and s.delivery_count < g.delivery_count_limit) loop
        exit when most <= 0 or bytes_left <= 0 or alone;
        if span.delivery_count >= g.delivery_count_limit - 1 then
            if taken <> '{}' or not is_first then
                most := case when g.ordering = 'key' then 0 else most end;
                continue;  -- a later poll takes it, and nothing else
            end if;
            alone := true;
        end if;
        acquired.first_offset := span.first_offset;
        acquired.last_offset := least(
            span.last_offset, span.first_offset - 1 + least(
                most, case when alone then 1 else greatest(1, max_records >> least(30, 3 * span.delivery_count)) end));
        acquired.delivery_count := span.delivery_count + 1;
        taken := taken || acquired;
        most := case when g.ordering = 'key' and acquired.last_offset < span.last_offset then 0
            else most - (acquired.last_offset - acquired.first_offset + 1) end;
    end loop;
    if taken = '{}' then
        return;
    end if;
    select f.spans, bytes_left - f.bytes, case when f.spans = taken then most else 0 end into taken, bytes_left, most
    from msgtx.fitting_spans(in_partition_id, taken, bytes_left) f;
    foreach span in array spans loop
        if span.first_offset = taken[at].first_offset then
            span.first_offset := taken[at].last_offset + 1;
            at := at + 1;
        end if;
        if span.first_offset <= span.last_offset then
            rest := rest || span;
        end if;
    end loop;
    spans := rest;
end $$;
