-- insert_markers(decisions) writes the markers that these decisions lack, with the coordinator epoch of each one's shard; →
-- how many. If a partition cannot take its markers now, the others take theirs, and the rest follows in a later round. The
-- caller holds the marking lock.
-- Reads transaction_marker, producer, coordinator_shard. Writes transaction_marker.
-- plan: look-ups, nested loops
create function msgtx.insert_markers(decisions msgtx.transaction_decision[]) returns int language plpgsql volatile as $$
declare
    missing msgtx.transaction_marker[];
    one int;
    inserted int := 0;
    inserted_now int;
begin
    missing := array(
        select row(s.partition_id, d.producer_id, d.producer_epoch, d.transaction_number, d.outcome,
                   s.first_offset, s.last_offset, coalesce(led.coordinator_epoch, 0))::msgtx.transaction_marker
        from unnest(decisions) d
        cross join lateral unnest(d.partitions, d.first_offsets, d.last_offsets) s(partition_id, first_offset, last_offset)
        left join lateral (
            select c.coordinator_epoch from msgtx.producer p
            join msgtx.coordinator_shard c on c.shard = p.shard where p.producer_id = d.producer_id limit 1) led on true
        where not exists (
            select from msgtx.marker_of(s.partition_id, d.producer_id, d.producer_epoch, d.transaction_number)));
    if missing = '{}' then
        return 0;
    end if;
    begin
        insert into msgtx.transaction_marker select m.* from unnest(missing) m on conflict do nothing;
        get diagnostics inserted = row_count;
        return inserted;
    exception when others then
        inserted := 0;
    end;
    for one in select distinct m.partition_id from unnest(missing) m loop
        begin
            insert into msgtx.transaction_marker
            select m.* from unnest(missing) m where m.partition_id = one on conflict do nothing;
            get diagnostics inserted_now = row_count;
            inserted := inserted + inserted_now;
        exception when others then
            raise warning 'partition % takes no markers now: %', one, sqlerrm;
        end;
    end loop;
    return inserted;
end $$;
