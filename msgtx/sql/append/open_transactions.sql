-- open_transactions(batches, …) inserts the rows of the transactions that these batches open, for the stored ones
-- (base_offsets is not null). Last in a call: the insert waits for another call that opens the same transaction.
-- Reads producer. Writes transaction.
create function msgtx.open_transactions(
    batches msgtx.batch[], base_offsets bigint[], in_timeout_ms int, in_client_host text, in_client_process int
) returns boolean language plpgsql volatile as $$
declare
    ignored boolean := msgtx.check_timeout(in_timeout_ms);
begin
    insert into msgtx.transaction (
        producer_id, producer_epoch, transaction_number, opened_at, timeout_ms,
        client_host, client_process, database_backend)
    select distinct on (b.producer_id) b.producer_id, b.producer_epoch, b.transaction_number, msgtx.clock(),
           coalesce(in_timeout_ms, p.timeout_ms), left(in_client_host, 255), in_client_process, pg_backend_pid()
    from unnest(batches) with ordinality
        b(partition_id, producer_id, producer_epoch, transaction_number, base_sequence, max_timestamp, keys, "values",
          timestamps, header_counts, header_keys, header_values, ordinal)
    cross join lateral (select p.* from msgtx.producer p where p.producer_id = b.producer_id limit 1) p
    where b.transaction_number is not null and base_offsets[b.ordinal] is not null
    order by b.producer_id
    on conflict do nothing;
    return true;
end $$;
