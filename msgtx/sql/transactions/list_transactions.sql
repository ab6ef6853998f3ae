-- list_transactions(…) → the next `most` rows of view transactions, in an order, from the one behind `after`. At most 20,000
-- producers are looked at in one call; a row without a producer says that there are more, and the place to continue from.
-- Of Ongoing and Prepared alone, all are looked at, with two look-ups each.
--   states, producer_ids   null: any       prefix   how the transactional id begins, as the caller sees it
--   by_producer            in order of the producer ids, not of the transactional ids (an id that is null comes last)
--   after                  the producer of the last row before; InvalidRequest if the order needs it and it is not there
-- Reads what view transactions does.
-- right: consume, observe
-- null: transactional_id, producer_id, state, opened_at, next_after
-- plan: look-ups
create function msgtx.list_transactions(
    states text[], producer_ids bigint[], prefix text, by_producer boolean, descending boolean, in_after bigint, most int)
returns table (transactional_id text, producer_id bigint, state text, opened_at timestamptz, next_after bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    looked_at_most constant int := 20000;  -- some 100 ms
    -- Each look is planned anew: few are needed, if most of what is looked at is returned or not.
    looked_at_once constant int := case
        when states is null or states <@ '{Ongoing,Prepared}' then least(most, 2000) else 2000 end;
    sees_ids constant boolean := msgtx.topics_of_caller('{observe}') is null or msgtx.may_use('transactional_id', null);
    -- An order by hidden names would tell something about them.
    source constant text := case when sees_ids then 'msgtx.producer' else 'msgtx.transactions' end;
    sign constant text := case when descending then '<' else '>' end;
    way constant text := case when descending then 'desc' else 'asc' end;
    sorted constant text := case when by_producer then '' else format('s.transactional_id %s, ', way)
        end || format('s.producer_id %s', way);
    -- Only the newest row of a producer can be undecided. This is a fifth of what the view costs.
    undecided constant text := case when states <@ '{Ongoing,Prepared}' then 'and exists (
        select from (select t.producer_epoch, t.transaction_number from msgtx.transaction t
                     where t.producer_id = s.producer_id
                     order by t.producer_epoch desc, t.transaction_number desc limit 1) t
        where not exists (
            select from msgtx.decision_of(s.producer_id, t.producer_epoch, t.transaction_number)))' else '' end;
    place bigint := in_after;
    name text;
    known boolean;
    behind text;
    ids bigint[];
    looked int := 0;
    returned int := 0;
begin
    loop
        if place is not null and not by_producer then
            execute format('select true, s.transactional_id from %s s where s.producer_id = $1', source)
                into known, name using place;
            if known is null then
                raise exception using errcode = 'MX042',
                    message = format('there is no producer %s (any more) behind which to continue: begin again', place),
                    detail = jsonb_build_object('name', 'after', 'given', place);
            end if;
        end if;
        behind := case
            when place is null then 'true'
            when by_producer or name is null then format(
                's.producer_id %s $4%s', sign, case
                when by_producer then '' when descending then ' or s.transactional_id is not null'
                else ' and s.transactional_id is null' end)
            else format('(s.transactional_id, s.producer_id) %s ($3, $4)%s', sign,
                        case when descending then '' else ' or s.transactional_id is null' end) end;
        execute format(
            'select array(
                select s.producer_id from %s s
                where ($1 is null or s.producer_id = any($1)) and ($2 is null or starts_with(s.transactional_id, $2))
                  and (%s) %s
                order by %s limit $5)', source, behind, undecided, sorted)
            into ids using producer_ids, prefix, name, place, looked_at_once;
        for transactional_id, producer_id, state, opened_at in execute format(
            'select s.transactional_id, s.producer_id, s.state, s.opened_at from msgtx.transactions s
             where s.producer_id = any($1) and ($2 is null or s.state = any($2)) order by %s limit $3', sorted)
            using ids, states, most - returned
        loop
            returned := returned + 1;
            return next;
        end loop;
        looked := looked + cardinality(ids);
        place := ids[cardinality(ids)];
        exit when returned >= most or cardinality(ids) < looked_at_once;
        if looked >= looked_at_most then
            transactional_id := null;
            producer_id := null;
            state := null;
            opened_at := null;
            next_after := place;
            return next;
            exit;
        end if;
    end loop;
end $$;
