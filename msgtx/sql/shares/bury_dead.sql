-- bury_dead(group, partition, delivery_limit, spans, most, max_bytes) writes the records of a share partition that are dead:
-- rejected in a transaction, or delivered as often as they may be and not acknowledged (bury_records). → the spans that
-- stay, how many letters it wrote, and of how many bytes.
--   is_met    something was done: records were buried, or are gone from the log      is_left   some are left for later
-- The caller holds the share partition's lock. Tries that of the partition of dead letters. Writes record_batch through
-- bury_records.
create function msgtx.bury_dead(
    group_name text, in_partition_id int, delivery_limit int, most int, max_bytes bigint,
    inout spans msgtx.share_span[], out buried int, out bytes bigint, out is_met boolean, out is_left boolean
) language plpgsql volatile as $$
declare
    dead constant msgtx.share_span[] := array(
        select s from unnest(spans) s
        where s.status = 'rejected' or s.status = 'available' and s.delivery_count >= delivery_limit);
    left_over msgtx.share_span[] := '{}';
begin
    buried := 0;
    bytes := 0;
    if dead <> '{}' then
        select b.* into left_over, buried, bytes
        from msgtx.bury_records(group_name, in_partition_id, dead, most, max_bytes) b;
        spans := array(
            select s from unnest(spans) s
            where not (s.status = 'rejected' or s.status = 'available' and s.delivery_count >= delivery_limit)) || left_over;
    end if;
    is_met := left_over is distinct from dead;
    is_left := left_over <> '{}';
end $$;
