-- is_committed(row) → whether a row of a transaction is committed in this snapshot: below the floor, no ABORT marker;
-- above it, a COMMIT decision. For views and look-ups; fetch_batches holds the same rule in its one statement.
-- right: consume
create function msgtx.is_committed(
    in_partition_id int, in_base_offset bigint, in_producer_id bigint, in_producer_epoch int, in_number bigint
) returns boolean language plpgsql stable security definer
set search_path = pg_catalog, pg_temp as $$
begin
    if in_base_offset < (
        select f.stable_floor from msgtx.partition_floor f
        where f.partition_id = in_partition_id order by f.stable_floor desc limit 1) then
        return not exists (
            select from msgtx.transaction_marker m
            where m.partition_id = in_partition_id and m.producer_id = in_producer_id
              and m.producer_epoch = in_producer_epoch and m.transaction_number = in_number and m.outcome = 'ABORT');
    end if;
    return exists (
        select from msgtx.transaction_decision d
        where d.producer_id = in_producer_id and d.producer_epoch = in_producer_epoch
          and d.transaction_number = in_number and d.outcome = 'COMMIT');
end $$;
